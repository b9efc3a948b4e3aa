// Package record keeps what the agent has to know after it was killed in small files, each of which is replaced as a
// whole: it is what it was or what it is to be. Most of the files need not outlive the machine's loss of power, after
// which no container is there either.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/disk"
)

// maxRecord bounds what is read of a record, in bytes. The largest are those of a node of a thousand pods, a few MB.
const maxRecord = 64 << 20

// Replace makes data the content of the file. It fails with [fs.ErrNotExist] when its directory is not there.
func Replace(path string, data []byte) error {
	return atomicfile.Write(path, data, 0o600)
}

// Keep is Write for what must outlive a loss of power, too.
func Keep(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.WriteSynced(path, data, 0o600)
}

// Write is Replace with v as JSON.
func Write(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Replace(path, data)
}

// Read takes what Write or Keep has written; false when there is nothing that can be read.
func Read(path string, v any) bool {
	data, err := atomicfile.Read(path, maxRecord)
	return err == nil && json.Unmarshal(data, v) == nil
}

// Change makes a list what it is to be, with save, which writes it down. Where that fails it is what it was.
func Change[T any](list *[]T, to []T, save func() error) error {
	before := *list
	*list = to
	if err := save(); err != nil {
		*list = before
		return err
	}
	return nil
}

// Drop takes what is gone out of a list, with save, which writes it down, and says whether there was any.
func Drop[T any](list *[]T, gone func(T) bool, save func() error) (dropped bool, err error) {
	left := slices.DeleteFunc(slices.Clone(*list), gone)
	if len(left) == len(*list) {
		return false, nil
	}
	err = Change(list, left, save)
	return err == nil, err
}

// Load has decode take what is in the file, a JSON object that says of which version of its format it is; nil when
// there is no file. Why the file was of no use is returned as bad: it was put aside then, beside its place, as after a
// loss of power that has cut it off, or stays where the disk cannot be written, until it is written over. A file of a
// later version than that given is an error, and stays, whether or not decode could make something of it; so is one
// that cannot be read for want of something that is not the file's.
func Load[T any](path string, version int, decode func(data []byte) (*T, error)) (v *T, bad, err error) {
	data, bad := atomicfile.Read(path, maxRecord)
	if errors.Is(bad, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if bad != nil && !disk.Unwritable(bad) && !errors.Is(bad, atomicfile.ErrNoFile) {
		return nil, nil, bad
	}
	var head struct {
		Version int `json:"version"`
	}
	if bad == nil {
		bad = json.Unmarshal(data, &head)
	}
	switch {
	case bad == nil && head.Version > version:
		return nil, nil, fmt.Errorf("%s was written by a later version (format %d, this is %d): stop the pods and remove it",
			path, head.Version, version)
	case bad == nil && head.Version < 1:
		bad = errors.New("it has no version")
	case bad == nil:
		v, bad = decode(data)
	}
	if bad == nil {
		return v, nil, nil
	}
	if err := os.Rename(path, path+Aside); err != nil {
		bad = fmt.Errorf("%w; it stays: %w", bad, err)
	}
	return nil, bad, nil
}

// Aside is what the name of a file ends with that was put aside.
const Aside = ".bad"

// Package record keeps what the agent has to know after it was killed in small files, each of which is replaced as a whole: it is what
// it was or what it is to be. Most of the files need not outlive the machine's loss of power, after which no container is there either.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace makes data the content of the file. It fails with [fs.ErrNotExist] when its directory is not there.
func Replace(path string, data []byte) error {
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Keep is Write for what must outlive a loss of power, too.
func Keep(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	// The name is the directory's.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Write is Replace with v as JSON.
func Write(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Replace(path, data)
}

// Load has decode take what is in the file, a JSON object that says of which version of its format it is; nil when there is no file. Why
// the file was of no use is returned as bad: it was put aside then, beside its place, as after a loss of power that has cut it off. A
// file of a later version than that given is an error, and stays, whether or not decode could make something of it.
func Load[T any](path string, version int, decode func(data []byte) (*T, error)) (v *T, bad, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var head struct {
		Version int `json:"version"`
	}
	bad = json.Unmarshal(data, &head)
	switch {
	case bad == nil && head.Version > version:
		return nil, nil, fmt.Errorf("%s was written by a later version (format %d, this is %d): stop the pods and remove it", path, head.Version, version)
	case bad == nil && head.Version < 1:
		bad = errors.New("it has no version")
	case bad == nil:
		v, bad = decode(data)
	}
	if bad != nil {
		return nil, bad, os.Rename(path, path+".bad")
	}
	return v, nil, nil
}

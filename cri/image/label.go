package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// labels are files beside the blobs: images/ALGORITHM-HEX.json has what the record of an image says, and its names. The
// records are in one file, which may be lost, and with it would go all images, on a node without a registry for good.
// An image whose layers are there is an image again.
type labels struct {
	dir     string
	content *content // where files are begun
}

// labelRecord is the content of such a file.
type labelRecord struct {
	ID    string
	Image imageRecord
	Names map[string]digest.Digest // with their targets
	At    time.Time                // of names that several have, the latest counts
}

// maxLabel bounds what is read of one.
const maxLabel = 8 << 20

func (ls labels) path(id string) (string, error) {
	d, err := digest.Parse(id)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", id, err)
	}
	return filepath.Join(ls.dir, d.Algorithm().String()+"-"+d.Encoded()+".json"), nil
}

// idOf is the ID of the image that a file is of, by the file's name.
func idOf(file string) (digest.Digest, bool) {
	algorithm, hex, _ := strings.Cut(strings.TrimSuffix(file, ".json"), "-")
	d := digest.NewDigestFromEncoded(digest.Algorithm(algorithm), hex)
	return d, d.Validate() == nil
}

func (ls labels) write(l labelRecord) error {
	path, err := ls.path(l.ID)
	if err != nil {
		return err
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	f, err := ls.content.begun()
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = into(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func (ls labels) remove(id string) error {
	path, err := ls.path(id)
	if err != nil {
		return nil // one with such a name has none
	}
	return ignoreNotExist(os.Remove(path))
}

// all reads the files that can be read, and calls unreadable with the others.
func (ls labels) all(unreadable func(file string, err error)) ([]labelRecord, error) {
	entries, err := os.ReadDir(ls.dir)
	if ignoreNotExist(err) != nil {
		return nil, err
	}
	var all []labelRecord
	for _, e := range entries {
		l, err := readLabel(filepath.Join(ls.dir, e.Name()))
		path, perr := ls.path(l.ID)
		if err != nil || perr != nil || filepath.Base(path) != e.Name() {
			unreadable(e.Name(), errors.Join(err, perr))
			continue
		}
		all = append(all, l)
	}
	return all, nil
}

func readLabel(path string) (l labelRecord, err error) {
	f, err := os.Open(path)
	if err != nil {
		return l, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxLabel))
	if err != nil {
		return l, err
	}
	return l, json.Unmarshal(b, &l)
}

package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// Beside the blobs, images/ALGORITHM-HEX.json has what the record of an image says, and its names. The records are in one file, which may
// be lost, and with it would go all images, on a node without a registry for good. An image whose layers are there is an image again.

// labelRecord is the content of such a file.
type labelRecord struct {
	ID    string
	Image imageRecord
	Names map[string]digest.Digest // with their targets
	At    time.Time                // of names that several have, the latest counts
}

// maxLabel bounds what is read of one.
const maxLabel = 8 << 20

func (c *content) label(id string) (string, error) {
	d, err := digest.Parse(id)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", id, err)
	}
	return filepath.Join(c.dir, "images", d.Algorithm().String()+"-"+d.Encoded()+".json"), nil
}

// writeLabel writes the file of an image as its records are.
func (s *Store) writeLabel(id string) error {
	path, err := s.content.label(id)
	if err != nil {
		return err
	}
	r, err := s.images.Get(id)
	if err != nil {
		return s.removeLabel(id)
	}
	l := labelRecord{ID: id, Image: r, Names: map[string]digest.Digest{}, At: time.Now()}
	for _, name := range s.namesOf(id) {
		if n, err := s.names.Get(name); err == nil {
			l.Names[name] = n.Target
		}
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	f, err := s.content.begun()
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

func (s *Store) removeLabel(id string) error {
	path, err := s.content.label(id)
	if err != nil {
		return nil // one with such a name has none
	}
	return ignoreNotExist(os.Remove(path))
}

// relabel writes the files of images whose names have changed. An image without is as good as any while its record lasts.
func (s *Store) relabel(ids ...string) {
	for _, id := range ids {
		if err := s.writeLabel(id); err != nil {
			s.log.Warn("image would be lost with the records", "image", id, "error", err)
		}
	}
}

// findAgain makes images of files whose record is lost, and gives images that have none their file.
func (s *Store) findAgain() error {
	entries, err := os.ReadDir(filepath.Join(s.content.dir, "images"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("find images: %w", err)
	}
	labelled := map[string]bool{}
	at := map[string]time.Time{} // of the label that a name was taken from
	for _, e := range entries {
		l, err := readLabel(filepath.Join(s.content.dir, "images", e.Name()))
		path, perr := s.content.label(l.ID)
		if err != nil || perr != nil || filepath.Base(path) != e.Name() {
			s.log.Warn("file of an image cannot be read", "file", e.Name(), "error", errors.Join(err, perr))
			continue
		}
		labelled[l.ID] = true
		if err := s.again(l, at); err != nil {
			return fmt.Errorf("find image %s: %w", l.ID, err)
		}
	}
	for id := range s.images.All() {
		if !labelled[id] {
			s.relabel(id)
		}
	}
	return nil
}

// again makes an image of a label, where its record is lost.
func (s *Store) again(l labelRecord, at map[string]time.Time) error {
	if _, err := s.images.Get(l.ID); err != nil {
		if top := topLayer(l.Image); top != "" && !s.cfg.Snapshots.Exists(top) {
			return s.removeLabel(l.ID)
		}
		s.log.Warn("image has lost its record, and is found again by what is on the disk", "image", l.ID, "names", strings.Join(slices.Sorted(maps.Keys(l.Names)), " "))
		if err := s.images.Note(l.ID, l.Image); err != nil {
			return err
		}
	}
	for name, target := range l.Names {
		_, err := s.names.Get(name)
		if taken, again := at[name]; err == nil && (!again || !l.At.After(taken)) {
			continue
		}
		at[name] = l.At
		if err := s.names.Note(name, nameRecord{ID: l.ID, Target: target}); err != nil {
			return err
		}
	}
	return nil
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

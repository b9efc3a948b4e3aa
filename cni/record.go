package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"

	"github.com/berth-node/berth/internal/atomicfile"
)

// A record says with which foreign configuration a sandbox was set up. libcni keeps one itself, but from the end of ADD
// only; a crash in the middle would leave what the plugins have done so far to nobody. The network built in needs no
// record: all it makes carries the sandbox ID.
type record struct {
	Conf         json.RawMessage `json:"conf"`
	NetNS        string          `json:"netns"`
	Args         [][2]string     `json:"args"`
	Capabilities map[string]any  `json:"capabilities,omitempty"`
	Boot         string          `json:"boot,omitempty"` // when it was set up
}

// records are those of sandboxes in a foreign network, each written twice. What plugins keep outlives a boot, as the
// leases of host-local do, so the first is synced to a file system that does; the second is for the boot, and where
// earlier versions have theirs.
type records struct{ lasting, volatile string }

const (
	recordExt  = ".json"
	damagedExt = ".damaged"
)

func (r records) dirs() []string { return []string{r.lasting, r.volatile} }

func (r records) paths(id string) []string {
	return []string{filepath.Join(r.lasting, id+recordExt), filepath.Join(r.volatile, id+recordExt)}
}

// has says whether there is a record of a sandbox.
func (r records) has(id string) bool {
	for _, path := range r.paths(id) {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

func (r records) put(id string, rec record) error {
	data, err := json.Marshal(rec)
	if err == nil {
		err = atomicfile.MkdirSynced(r.lasting, 0o700)
	}
	if err == nil {
		err = os.MkdirAll(r.volatile, 0o700)
	}
	if err == nil {
		err = atomicfile.WriteSynced(filepath.Join(r.lasting, id+recordExt), data, 0o600)
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(r.volatile, id+recordExt), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record network of %s: %w", id, err)
	}
	return nil
}

// get returns nil when there is no record. One that cannot be read is passed over for the other.
func (r records) get(id string) (*record, error) {
	var damaged error
	for _, path := range r.paths(id) {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var rec *record
		if err == nil {
			if rec, err = parseRecord(data); err == nil {
				return rec, nil
			}
		}
		damaged = errors.Join(damaged, fmt.Errorf("read network record %s: %w", path, err))
	}
	return nil, damaged
}

func parseRecord(data []byte) (*record, error) {
	var rec record
	if err := json.Unmarshal(data, &rec); err != nil {
		return nil, err
	}
	if _, err := rec.list(); err != nil {
		return nil, err
	}
	return &rec, nil
}

func (rec *record) list() (*libcni.NetworkConfigList, error) { return parseConf(rec.Conf) }

func (r records) remove(id string) error {
	for _, path := range r.paths(id) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget network of %s: %w", id, err)
		}
	}
	return nil
}

// putAside keeps what cannot be read for who wants to look at it, and in nobody's way.
func (r records) putAside(id string) error {
	for _, path := range r.paths(id) {
		if err := os.Rename(path, path+damagedExt); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("put network record of %s aside: %w", id, err)
		}
	}
	return nil
}

// ids of all records; what a crash left half written is removed.
func (r records) ids() ([]string, error) {
	seen := map[string]bool{}
	var ids []string
	for _, dir := range r.dirs() {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list network records: %w", err)
		}
		for _, e := range entries {
			switch ext := filepath.Ext(e.Name()); ext {
			case recordExt:
				if id := e.Name()[:len(e.Name())-len(ext)]; !seen[id] {
					seen[id] = true
					ids = append(ids, id)
				}
			case atomicfile.Part, ".tmp": // the latter is what earlier versions have
				if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return nil, fmt.Errorf("list network records: %w", err)
				}
			}
		}
	}
	return ids, nil
}

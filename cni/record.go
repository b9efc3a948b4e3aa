package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
)

// A record says with which foreign configuration a sandbox was set up. libcni keeps one itself, but from the end of ADD
// only; a crash in the middle would leave what the plugins have done so far to nobody. The network built in needs no
// record: all it makes carries the sandbox ID.
type record struct {
	Conf         json.RawMessage `json:"conf"`
	NetNS        string          `json:"netns"`
	Args         [][2]string     `json:"args"`
	Capabilities map[string]any  `json:"capabilities,omitempty"`
}

type records struct{ dir string }

func (r records) path(id string) string { return filepath.Join(r.dir, id+".json") }

func (r records) put(id string, rec record) error {
	data, err := json.Marshal(rec)
	if err == nil {
		err = os.MkdirAll(r.dir, 0o700)
	}
	if err == nil {
		// Written aside: half a record would be worse than none.
		tmp := filepath.Join(r.dir, id+".tmp")
		if err = os.WriteFile(tmp, data, 0o600); err == nil {
			err = os.Rename(tmp, r.path(id))
		}
	}
	if err != nil {
		return fmt.Errorf("record network of %s: %w", id, err)
	}
	return nil
}

// get returns nil when there is no record.
func (r records) get(id string) (*record, error) {
	data, err := os.ReadFile(r.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read network record of %s: %w", id, err)
	}
	rec, err := parseRecord(data)
	if err != nil {
		return nil, fmt.Errorf("read network record of %s: %w", id, err)
	}
	return rec, nil
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
	if err := os.Remove(r.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget network of %s: %w", id, err)
	}
	return nil
}

// ids of all records; what a crash left half written is removed.
func (r records) ids() ([]string, error) {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network records: %w", err)
	}
	var ids []string
	for _, e := range entries {
		switch ext := filepath.Ext(e.Name()); ext {
		case ".json":
			ids = append(ids, e.Name()[:len(e.Name())-len(ext)])
		case ".tmp":
			if err := os.Remove(filepath.Join(r.dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("list network records: %w", err)
			}
		}
	}
	return ids, nil
}

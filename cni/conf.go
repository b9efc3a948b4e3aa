package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"
)

// confDir finds the network configuration in a directory. It looks when it is asked: listing a directory of a few files
// takes some microseconds, and so a configuration holds from the moment it is there, with no watch that could be late,
// miss a directory that does not exist yet, or have to be ended.
type confDir struct {
	dir      string
	required bool // that there is none is an error like others

	mu   sync.Mutex
	seen string // names, times and sizes of the files that list was read from
	list *libcni.NetworkConfigList
	err  error
}

// errNoConf says that there is no configuration: the network built in is used.
var errNoConf = errors.New("no network configuration")

// get returns the configuration whose file comes first by name, errNoConf, or why that one cannot be used.
func (c *confDir) get() (*libcni.NetworkConfigList, error) {
	if c.dir == "" {
		return nil, errNoConf
	}
	entries, err := os.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, c.none()
	}
	if err != nil {
		return nil, fmt.Errorf("list network configurations: %w", err)
	}
	first := ""
	var seen strings.Builder
	for _, e := range entries {
		// A configuration may keep its plugins in a directory beside it; a change there is one of the configuration.
		if info, err := os.Stat(filepath.Join(c.dir, e.Name())); err == nil {
			fmt.Fprintln(&seen, e.Name(), info.ModTime().UnixNano(), info.Size())
			if first == "" && info.Mode().IsRegular() && isConf(e.Name()) {
				first = filepath.Join(c.dir, e.Name())
			}
		}
	}
	if first == "" {
		return nil, c.none()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen != seen.String() {
		c.seen = seen.String()
		if c.list, c.err = readConf(first); c.err != nil {
			c.err = fmt.Errorf("read network configuration %s: %w", first, c.err)
		}
	}
	return c.list, c.err
}

func (c *confDir) none() error {
	if c.required {
		return fmt.Errorf("there is no network configuration (*.conflist, *.conf, *.json) in %s, which the pods' "+
			"network is to be of", c.dir)
	}
	return errNoConf
}

func isConf(name string) bool {
	switch filepath.Ext(name) {
	case ".conflist", ".conf", ".json":
		return true
	}
	return false
}

func readConf(path string) (*libcni.NetworkConfigList, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	list, err := parseConf(data)
	if err == nil && len(list.Plugins) == 0 {
		// Its plugins are in a directory beside the file.
		list, err = libcni.NetworkConfFromFile(path)
	}
	return list, err
}

// parseConf reads a list of plugins, or a single plugin as a list of one.
func parseConf(data []byte) (*libcni.NetworkConfigList, error) {
	var kind struct {
		Name    string          `json:"name"`
		Version string          `json:"cniVersion,omitempty"`
		Type    string          `json:"type,omitempty"`
		Plugins json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return nil, err
	}
	if kind.Type != "" && kind.Plugins == nil {
		kind.Type, kind.Plugins = "", slices.Concat([]byte{'['}, data, []byte{']'})
		list, err := json.Marshal(kind)
		if err != nil {
			return nil, err
		}
		data = list
	}
	return libcni.NetworkConfFromBytes(data)
}

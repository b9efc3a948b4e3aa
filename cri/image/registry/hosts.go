package registry

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"
)

// hostsFile is the part of a hosts.toml file whose types matter.
type hostsFile struct {
	hostEntry
	Server string               `toml:"server"`
	Host   map[string]hostEntry `toml:"host"`
}

type hostEntry struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   *bool          `toml:"skip_verify"`
	Header       map[string]any `toml:"header"`
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
}

// checkHosts reports what is wrong with the hosts.toml in dir, if there is one.
func checkHosts(dir string) error {
	file := filepath.Join(dir, "hosts.toml")
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var f hostsFile
	if err := toml.NewDecoder(bytes.NewReader(b)).Decode(&f); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	entries := map[string]hostEntry{f.Server: f.hostEntry}
	maps.Copy(entries, f.Host)
	for name, e := range entries {
		for _, c := range e.Capabilities {
			switch c {
			case "pull", "resolve", "push", "referrers":
			default:
				return fmt.Errorf("read %s: host %q: unknown capability %q", file, name, c)
			}
		}
	}
	return nil
}

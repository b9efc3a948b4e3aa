package config

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/berth-node/berth/internal/atomicfile"
)

// PlaceFile is the file of a run directory that says where else the node is that ran there last.
const PlaceFile = "place.json"

// placeMost is more than any place takes, in bytes.
const placeMost = 64 << 10

// Save writes the file, for commands that are given the run directory alone. The helper is left out: it belongs to the
// program that runs, not to the node.
func (p Place) Save() error {
	p.Helper = ""
	data, err := json.Marshal(p)
	if err == nil {
		err = atomicfile.Write(filepath.Join(p.RunDir, PlaceFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep where the node is: %w", err)
	}
	return nil
}

// Recall takes from the file of the run directory what given does not say, which are the flags of [Place.AddFlags] as
// they were parsed. Without a file, which is [os.ErrNotExist], or with one that cannot be read it changes nothing.
func (p *Place) Recall(given *pflag.FlagSet) error {
	path := filepath.Join(p.RunDir, PlaceFile)
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("find out where the node is: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, placeMost))
	var had Place
	if err == nil {
		err = json.Unmarshal(data, &had)
	}
	if err == nil {
		had.RunDir, had.Helper = p.RunDir, p.Helper
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		had.AddFlags(flags)
		given.Visit(func(f *pflag.Flag) {
			if flags.Lookup(f.Name) != nil && err == nil {
				err = flags.Set(f.Name, f.Value.String())
			}
		})
	}
	if err != nil {
		return fmt.Errorf("find out where the node is: read %s: %w", path, err)
	}
	if had.RootDir == "" || had.LogDir == "" || had.CgroupRoot == "" {
		return fmt.Errorf("find out where the node is: %s does not say", path)
	}
	*p = had
	return nil
}

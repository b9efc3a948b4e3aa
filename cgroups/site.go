package cgroups

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Site is how an agent makes its groups, kept in its run directory for those who look at them: also while no agent runs.
type Site struct {
	Root     string  `json:"root"` // group below which kubepods is
	LogDir   string  `json:"logDir"`
	NodeName string  `json:"nodeName"` // the suffix of static pods' names
	Options  Options `json:"options"`
	Pins     string  `json:"pins,omitempty"`  // file with the CPUs and memory nodes that containers have for themselves
	Kills    string  `json:"kills,omitempty"` // file with the last kill of each container for want of memory
}

// SiteFile is the file's name in the run directory.
const SiteFile = "cgroups.json"

// Save writes the file.
func (s Site) Save(runDir string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("keep cgroup settings: %w", err)
	}
	path := filepath.Join(runDir, SiteFile)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("keep cgroup settings: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("keep cgroup settings: %w", err)
	}
	return nil
}

// LoadSite reads the file of a run directory. Without one it is os.ErrNotExist.
func LoadSite(runDir string) (Site, error) {
	var s Site
	data, err := os.ReadFile(filepath.Join(runDir, SiteFile))
	if err != nil {
		return s, fmt.Errorf("find cgroup settings: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read cgroup settings of %s: %w", runDir, err)
	}
	return s, nil
}

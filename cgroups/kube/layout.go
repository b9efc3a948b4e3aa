package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Layout is how an agent makes its groups, kept in its run directory for those who look at them: also while no agent
// runs.
type Layout struct {
	Root     string  `json:"root"` // group below which kubepods is
	LogDir   string  `json:"logDir"`
	NodeName string  `json:"nodeName"` // the suffix of static pods' names
	Options  Options `json:"options"`
	Pins     string  `json:"pins,omitempty"`  // file with the CPUs and memory nodes that containers have for themselves
	Kills    string  `json:"kills,omitempty"` // file with the latest kills in containers for want of memory
	Evicts   *Evicts `json:"evicts,omitempty"`
}

// Evicts is by which rules the agent ranks pods when memory is short.
type Evicts struct {
	WorkingSet   bool `json:"workingSet"`   // it counts the working set, else what the kernel cannot drop
	Swap         bool `json:"swap"`         // and what is in swap
	SparesStatic bool `json:"sparesStatic"` // static pods stay
}

// LayoutFile is the file's name in the run directory.
const LayoutFile = "cgroups.json"

// Save writes the file.
func (l Layout) Save(runDir string) error {
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("keep cgroup settings: %w", err)
	}
	path := filepath.Join(runDir, LayoutFile)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("keep cgroup settings: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("keep cgroup settings: %w", err)
	}
	return nil
}

// LoadLayout reads the file of a run directory. Without one it is os.ErrNotExist.
func LoadLayout(runDir string) (Layout, error) {
	var l Layout
	data, err := os.ReadFile(filepath.Join(runDir, LayoutFile))
	if err != nil {
		return l, fmt.Errorf("find cgroup settings: %w", err)
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return l, fmt.Errorf("read cgroup settings of %s: %w", runDir, err)
	}
	return l, nil
}

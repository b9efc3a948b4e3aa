package cgroups

import (
	"errors"
	"fmt"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// MachinePressure is how long the tasks of the machine stood waiting for cpu, memory or io.
func MachinePressure(resource string) (Pressure, error) {
	return readPressure("/proc/pressure/" + resource)
}

// Pressure is how long the tasks of a v2 group stood waiting for cpu, memory or io. v1 does not count it.
func (h *Hierarchy) Pressure(group, resource string) (Pressure, error) {
	if h.Mode() != Unified {
		return Pressure{}, fmt.Errorf("read pressure of %s in %s: %w", resource, group, errors.ErrUnsupported)
	}
	return readPressure(h.MemoryDir(group) + "/" + resource + ".pressure")
}

func readPressure(file string) (Pressure, error) {
	var p Pressure
	buf := make([]byte, 512)
	n, err := kernfs.ReadInto(file, buf)
	if err != nil {
		return p, err
	}
	if err := parsePressure(buf[:n], &p); err != nil {
		return p, fmt.Errorf("read %s: %w", file, err)
	}
	return p, nil
}

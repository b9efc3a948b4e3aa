package cgroups

import (
	"errors"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Difference is a setting that somebody changed behind our back.
type Difference struct {
	Setting
	Path  string
	Found string
}

func (d Difference) String() string {
	return fmt.Sprintf("%s of %s is %q, should be %q (%s)", d.File, d.Path, d.Found, d.Want, d.Field)
}

// Drift reads the files of a group back and returns what differs. A missing group is ENOENT.
func (h *Hierarchy) Drift(path string, want []Setting) ([]Difference, error) {
	if !h.Exists(path) {
		return nil, fmt.Errorf("compare group %s: %w", path, os.ErrNotExist)
	}
	var out []Difference
	for _, s := range want {
		controller, _, _ := strings.Cut(s.File, ".")
		dir := h.Dir(controller, path)
		if dir == "" {
			continue
		}
		found, err := readString(dir + "/" + s.File)
		if errors.Is(err, os.ErrNotExist) {
			continue // the kernel has no such setting
		}
		if err != nil {
			return out, err
		}
		if !s.Matches(found) {
			out = append(out, Difference{Setting: s, Path: path, Found: found})
		}
	}
	return out, nil
}

// Drift compares a pod's own group with its specification.
func (t *Tree) Drift(pod *corev1.Pod) ([]Difference, error) {
	return t.h.Drift(t.PodPath(pod), PodSettings(t.h.mode, pod, t.opts))
}

// ContainerDrift compares a container's group, which the runtime has put at path.
func (t *Tree) ContainerDrift(path string, pod *corev1.Pod, c *corev1.Container) ([]Difference, error) {
	return t.h.Drift(path, ContainerSettings(t.h.mode, pod, c, t.opts))
}

package kube

import (
	"errors"
	"fmt"
	"os"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
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

// directories is where a hierarchy has its groups.
type directories interface {
	Exists(path string) bool
	Dir(controller, path string) string
}

// Drift reads the files of a group back and returns what differs. A missing group is ENOENT.
func Drift(h directories, path string, want []Setting) ([]Difference, error) {
	if !h.Exists(path) {
		return nil, fmt.Errorf("compare group %s: %w", path, os.ErrNotExist)
	}
	var out []Difference
	for _, s := range want {
		dir := settingDir(h, path, s)
		if dir == "" {
			continue
		}
		s = s.Under(func(file string) bool { return kernfs.Exists(dir + "/" + file) })
		found, err := kernfs.ReadString(dir + "/" + s.File)
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

func settingDir(h directories, path string, s Setting) string {
	controller, _, _ := strings.Cut(s.File, ".")
	return h.Dir(controller, path)
}

// Wanted is what a group should have.
type Wanted struct {
	Path      string
	Resources *specs.LinuxResources
	Settings  []Setting // the same, as the files have it

	partial bool // what is not said is left as it is
}

// Pin is where a container runs and has its memory, in the kernel's list format; "" is anywhere.
type Pin struct {
	CPUs, Mems string
	Exclusive  bool // nobody else runs on the CPUs
}

// Apply puts the pin into a container's resources. Who has CPUs of its own cannot take more than they have, and a quota
// would stop it for moments at which it was over by the clock only.
func (p Pin) Apply(r *specs.LinuxResources) {
	r.CPU.Cpus, r.CPU.Mems = p.CPUs, p.Mems
	if p.Exclusive {
		r.CPU.Quota, r.CPU.Period, r.CPU.Burst = nil, nil, nil
	}
}

// WantedOfPod is what the pod's own group should have.
func (t *Tree) WantedOfPod(pod *corev1.Pod) Wanted {
	return Wanted{Path: t.PodPath(pod), Resources: PodResources(pod, t.opts), Settings: PodSettings(t.h.Mode(), pod, t.opts)}
}

// WantedOfContainer is what the group of a container should have, which the runtime has put at path.
func (t *Tree) WantedOfContainer(path string, pod *corev1.Pod, c *corev1.Container, pin Pin) Wanted {
	r := ContainerResources(pod, c, t.opts)
	pin.Apply(r)
	return Wanted{Path: path, Resources: r, Settings: settings(t.h.Mode(), r, originOf(pod, c))}
}

// Drift compares a group with what it should have.
func (t *Tree) Drift(w Wanted) ([]Difference, error) { return Drift(t.h, w.Path, w.Settings) }

// Correct gives the group what it should have. Where systemd makes the groups it is told: it may be from there that
// another value came.
func (t *Tree) Correct(w Wanted) error {
	if w.partial {
		return t.d.Update(w.Path, w.Resources)
	}
	return t.d.Update(w.Path, Explicit(w.Resources))
}

// ContainerGroups are the groups in a pod's group, by what their names end in: the ID of the container or sandbox. One
// that is not in the hierarchy that stands for all is as good as gone.
func (t *Tree) ContainerGroups(pod *corev1.Pod) (map[string]string, error) {
	path := t.PodPath(pod)
	names, err := cgroups.Inside(t.h, path)
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(names))
	for _, n := range names {
		out[containerOf(n)] = path + "/" + n
	}
	return out, nil
}

// containerOf is the ID in the name of a container's group.
func containerOf(name string) string {
	if stem, ok := strings.CutSuffix(name, ".scope"); ok {
		return stem[strings.LastIndexByte(stem, '-')+1:]
	}
	return name
}

// Owner is whose a group is, by the names of the groups it is in, so that it need not be there any more: the pod's, and
// the container's in it, "" for the pod's own group. What a container has made below its group is its own.
func (t *Tree) Owner(group string) (uid types.UID, container string, ok bool) {
	for _, q := range []corev1.PodQOSClass{corev1.PodQOSBurstable, corev1.PodQOSBestEffort, corev1.PodQOSGuaranteed} {
		rest, in := strings.CutPrefix(group, t.ClassPath(q)+"/")
		if !in {
			continue
		}
		parts := strings.SplitN(rest, "/", 3)
		if uid, ok = podUID(parts[0]); ok && len(parts) > 1 {
			container = containerOf(parts[1])
		}
		return uid, container, ok
	}
	return "", "", false
}

// Changes tells of writes to the groups of this tree.
func (t *Tree) Changes() (*cgroups.Changes, error) { return cgroups.NewChanges(t.h) }

package kube

import (
	"context"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups"
)

// Driver makes groups and takes them away, and knows how they are called: [Cgroupfs] does it with the kernel's files
// alone, cgroups/systemd through the service manager, which then knows of them. All methods are idempotent.
type Driver interface {
	// Driver is [cgroups.DriverCgroupfs] or [cgroups.DriverSystemd].
	Driver() string
	// Path is the group below root with these names one inside the other.
	Path(root string, names ...string) string
	Create(path string, r *specs.LinuxResources) error
	Update(path string, r *specs.LinuxResources) error
	Remove(ctx context.Context, path string) error
	// Announce says what was written to the group's files beside the driver, for whoever would write its own values
	// over them.
	Announce(path string, r *specs.LinuxResources) error
}

// Cgroupfs makes groups with the kernel's files alone.
func Cgroupfs(h *cgroups.Hierarchy) Driver { return cgroupfs{h} }

type cgroupfs struct{ h *cgroups.Hierarchy }

func (c cgroupfs) Create(path string, r *specs.LinuxResources) error { return c.h.Create(path, r) }

func (c cgroupfs) Update(path string, r *specs.LinuxResources) error { return c.h.Update(path, r) }

func (c cgroupfs) Remove(ctx context.Context, path string) error { return c.h.Remove(ctx, path) }

func (c cgroupfs) Driver() string { return cgroups.DriverCgroupfs }

func (c cgroupfs) Path(root string, names ...string) string { return plainPath(root, names...) }

// plainPath puts the names below root.
func plainPath(root string, names ...string) string {
	return path.Join(append([]string{"/", root}, names...)...)
}

// Announce has nobody to tell.
func (c cgroupfs) Announce(string, *specs.LinuxResources) error { return nil }

// podUID is the reverse of a pod's name in either driver's layout; ok is false for the class directories and what is
// not ours.
func podUID(name string) (types.UID, bool) {
	stem, slice := strings.CutSuffix(name, ".slice")
	if slice {
		stem = stem[strings.LastIndexByte(stem, '-')+1:]
	}
	uid, ok := strings.CutPrefix(stem, podPrefix)
	if !ok || uid == "" || strings.ContainsAny(uid, "/.") {
		return "", false
	}
	if slice {
		uid = strings.ReplaceAll(uid, "_", "-")
	}
	return types.UID(uid), true
}

package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/types"
)

// The names of the drivers, as other programs say them.
const (
	DriverCgroupfs = "cgroupfs"
	DriverSystemd  = "systemd"
)

// Driver makes groups and takes them away, and knows how they are called: a [Hierarchy] does it with the kernel's files alone,
// [Systemd] through the service manager, which then knows of them. All methods are idempotent.
type Driver interface {
	// Driver is DriverCgroupfs or DriverSystemd.
	Driver() string
	// Path is the group below root with these names one inside the other.
	Path(root string, names ...string) string
	Create(path string, r *specs.LinuxResources) error
	Update(path string, r *specs.LinuxResources) error
	Remove(ctx context.Context, path string) error
	// Announce says what was written to the group's files beside the driver, for whoever would write its own values over them.
	Announce(path string, r *specs.LinuxResources) error
}

// ErrNoSystemd says that systemd is not the init of this machine.
var ErrNoSystemd = errors.New("systemd does not run here")

// HasSystemd says whether systemd manages this machine, by the directory that it documents for the question.
func HasSystemd() bool {
	st, err := os.Stat("/run/systemd/system")
	return err == nil && st.IsDir()
}

// Driver is DriverCgroupfs.
func (h *Hierarchy) Driver() string { return DriverCgroupfs }

// Path puts the names below root.
func (h *Hierarchy) Path(root string, names ...string) string {
	return path.Join(append([]string{"/", root}, names...)...)
}

// Announce has nobody to tell.
func (h *Hierarchy) Announce(string, *specs.LinuxResources) error { return nil }

// SlicePath is the group of the slice with these names one inside the other. systemd repeats the parents in a slice's name:
// "/a" and "b" are /a.slice/a-b.slice. A dash in a name would be one more level and becomes an underscore, as kubelet does. A
// root that is a slice already may be given as one.
func SlicePath(root string, names ...string) string {
	var parts []string
	for p := range strings.SplitSeq(clean(root), "/") {
		stem, isSlice := strings.CutSuffix(p, ".slice")
		switch {
		case p == "" || stem == "-":
		case isSlice:
			parts = strings.Split(stem, "-") // it says its parents itself
		default:
			parts = append(parts, unitPart(p))
		}
	}
	for _, n := range names {
		parts = append(parts, unitPart(n))
	}
	dir := "/"
	for i := range parts {
		dir = path.Join(dir, strings.Join(parts[:i+1], "-")+".slice")
	}
	return dir
}

func unitPart(name string) string { return strings.ReplaceAll(name, "-", "_") }

// podUID is the reverse of a pod's name in either driver's layout; ok is false for the class directories and what is not ours.
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

func unitOf(group string) (unit string, err error) {
	unit = path.Base(group)
	if strings.HasSuffix(unit, ".slice") || strings.HasSuffix(unit, ".scope") {
		return unit, nil
	}
	return "", fmt.Errorf("group %s: the systemd driver makes slices and scopes only", group)
}

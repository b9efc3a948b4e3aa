package systemd

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/berth-node/berth/cgroups"
)

// ErrNotRunning says that systemd is not the init of this machine.
var ErrNotRunning = errors.New("systemd does not run here")

// Running says whether systemd manages this machine, by the directory that it documents for the question.
func Running() bool {
	st, err := os.Stat("/run/systemd/system")
	return err == nil && st.IsDir()
}

// SlicePath is the group of the slice with these names one inside the other. systemd repeats the parents in a slice's
// name: "/a" and "b" are /a.slice/a-b.slice. A dash in a name would be one more level and becomes an underscore, as
// kubelet does. A root that is a slice already may be given as one.
func SlicePath(root string, names ...string) string {
	var parts []string
	for p := range strings.SplitSeq(path.Clean("/"+root), "/") {
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

// unitAt is a group's path as it is below the hierarchy, and its unit.
func unitAt(path string) (group, unit string, err error) {
	if group, err = cgroups.GroupPath(path); err == nil {
		unit, err = unitOf(group)
	}
	return group, unit, err
}

func unitOf(group string) (unit string, err error) {
	unit = path.Base(group)
	if strings.HasSuffix(unit, ".slice") || strings.HasSuffix(unit, ".scope") {
		return unit, nil
	}
	return "", fmt.Errorf("group %s: the systemd driver makes slices and scopes only", group)
}

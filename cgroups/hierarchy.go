// Package cgroups owns the cgroup tree of a node: it finds out how the machine mounts control groups (v1, hybrid or
// v2), makes, limits, measures, kills and removes groups. It is the kernel's part alone: which groups a pod has and
// what they are set to is in cgroups/kube, and the driver that makes groups as units of systemd in cgroups/systemd.
//
// Paths are those of the kernel: absolute within each hierarchy, "/kubepods/burstable/pod<uid>", never relative to the
// group this process happens to sit in.
package cgroups

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// DefaultMount is where every distribution mounts control groups.
const DefaultMount = "/sys/fs/cgroup"

// The names of the drivers, as other programs say them.
const (
	DriverCgroupfs = "cgroupfs"
	DriverSystemd  = "systemd"
)

// Mode says which of the kernel's two interfaces the controllers are on.
type Mode int

const (
	// Legacy has every controller on a v1 hierarchy and no v2 mount.
	Legacy Mode = iota
	// Hybrid has the controllers on v1 and a v2 hierarchy beside them, which gives cgroup.kill, populated events and
	// per-group PSI although the limits are v1's.
	Hybrid
	// Unified has everything on v2.
	Unified
)

func (m Mode) String() string {
	switch m {
	case Legacy:
		return "v1"
	case Hybrid:
		return "v1-hybrid"
	default:
		return "v2"
	}
}

var (
	// ErrNoHierarchy says that no cgroup file system is mounted where we were told to look.
	ErrNoHierarchy = errors.New("no cgroup hierarchy is mounted")
	// ErrOutside says that a path leaves the hierarchy or is its root, which we never create, kill or remove.
	ErrOutside = errors.New("not a group below the cgroup root")
)

// Hierarchy is the machine's cgroup tree. It has no state but what was found at Open, so one value serves all
// goroutines.
type Hierarchy struct {
	mode    Mode
	mount   string
	trees   []tree            // every mounted hierarchy a group exists in
	byName  map[string]string // v1 controller -> mount directory
	unified string            // the v2 mount, "" in Legacy mode
	v2      []string          // controllers of the v2 hierarchy
	sub     *v1Settings
}

// tree is one mounted hierarchy.
type tree struct {
	dir         string
	unified     bool
	whole       bool
	controllers []string
}

func (t tree) has(controller string) bool { return slices.Contains(t.controllers, controller) }

// Open finds the hierarchies mounted at or below mountpoint ("" is DefaultMount).
func Open(mountpoint string) (*Hierarchy, error) {
	if mountpoint == "" {
		mountpoint = DefaultMount
	}
	mountpoint = filepath.Clean(mountpoint)
	mounts, err := readMounts(mountpoint)
	if err != nil {
		return nil, err
	}
	return detect(mountpoint, mounts, isFS)
}

// detect finds out what the mounts are; is says whether a directory still shows a file system of this kind.
func detect(mountpoint string, mounts []mount, is func(dir string, magic int64) (bool, error)) (*Hierarchy, error) {
	h := &Hierarchy{mount: mountpoint, byName: map[string]string{}}
	for _, m := range mounts {
		magic := int64(unix.CGROUP_SUPER_MAGIC)
		if m.unified {
			magic = unix.CGROUP2_SUPER_MAGIC
		}
		if ok, err := is(m.dir, magic); err != nil || !ok {
			continue // covered by another mount, or out of our reach
		}
		if err := add(h, m); err != nil {
			return nil, err
		}
	}
	switch {
	case len(h.byName) == 0 && h.unified == "":
		return nil, fmt.Errorf("open cgroups at %s: %w", mountpoint, ErrNoHierarchy)
	case !hasV1Controller(h.byName):
		// Named v1 hierarchies ("name=systemd") carry no limits; with v2 beside them the machine is a v2 machine.
		h.mode = Unified
		if h.unified == "" {
			return nil, fmt.Errorf("open cgroups at %s: no controllers: %w", mountpoint, ErrNoHierarchy)
		}
	case h.unified == "":
		h.mode = Legacy
	default:
		h.mode = Hybrid
	}
	h.sub = newV1Settings(h.byName)
	return h, nil
}

// add adds a mount to what has been found.
func add(h *Hierarchy, m mount) error {
	t := tree{dir: m.dir, unified: m.unified, whole: m.root == "/", controllers: m.controllers}
	if m.unified {
		if h.unified != "" {
			return nil // the same hierarchy mounted twice
		}
		data, err := os.ReadFile(filepath.Join(m.dir, "cgroup.controllers"))
		if err != nil {
			return fmt.Errorf("read controllers of %s: %w", m.dir, err)
		}
		t.controllers = strings.Fields(string(data))
		h.unified, h.v2 = m.dir, t.controllers
		h.trees = append(h.trees, t)
		return nil
	}
	if _, dup := h.byName[m.controllers[0]]; dup {
		return nil
	}
	for _, c := range m.controllers {
		h.byName[c] = m.dir
	}
	h.trees = append(h.trees, t)
	return nil
}

func hasV1Controller(byName map[string]string) bool {
	for c := range byName {
		if !strings.HasPrefix(c, "name=") {
			return true
		}
	}
	return false
}

// Mode says what was detected.
func (h *Hierarchy) Mode() Mode { return h.mode }

// Mountpoint is the directory the hierarchies are mounted at or below.
func (h *Hierarchy) Mountpoint() string { return h.mount }

// Controllers lists the resource controllers that can be used, sorted, without named hierarchies.
func (h *Hierarchy) Controllers() []string {
	var out []string
	for _, t := range h.trees {
		for _, c := range t.controllers {
			if !strings.HasPrefix(c, "name=") {
				out = append(out, c)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Dir is the group's directory in the hierarchy of a controller, "" when the machine has no such controller. "" as
// controller means the v2 hierarchy.
func (h *Hierarchy) Dir(controller, path string) string {
	if controller != "" {
		if root, ok := h.byName[controller]; ok {
			return join(root, path)
		}
		if !slices.Contains(h.v2, v2Name(controller)) {
			return ""
		}
	}
	if h.unified == "" {
		return ""
	}
	return join(h.unified, path)
}

func join(root, path string) string {
	if path = clean(path); path == "/" {
		return root
	}
	return root + path
}

// v2Name maps the v1 names of controllers that were renamed or became part of the core in v2.
func v2Name(controller string) string {
	switch controller {
	case "blkio":
		return "io"
	case "cpuacct":
		return "cpu"
	}
	return controller
}

// Dirs are the group's directories, one a hierarchy.
func (h *Hierarchy) Dirs(path string) []string {
	out := make([]string, len(h.trees))
	for i, t := range h.trees {
		out[i] = join(t.dir, path)
	}
	return out
}

// Tree is one mounted hierarchy.
type Tree struct {
	Mount       string
	Controllers []string // a named hierarchy of v1 is "name=..."
	Unified     bool
	Whole       bool // the mount shows the hierarchy from its root on
}

// Trees are the hierarchies in which groups are made.
func (h *Hierarchy) Trees() []Tree {
	out := make([]Tree, len(h.trees))
	for i, t := range h.trees {
		out[i] = Tree{Mount: t.dir, Controllers: t.controllers, Unified: t.unified, Whole: t.whole}
	}
	return out
}

// ProcsFiles are the cgroup.procs files a process has to be written to for it to be in the group in every hierarchy.
func (h *Hierarchy) ProcsFiles(path string) []string {
	out := h.Dirs(path)
	for i := range out {
		out[i] += "/cgroup.procs"
	}
	return out
}

// MemoryDir is the directory with the group's memory.oom_control (v1) or memory.events (v2).
func (h *Hierarchy) MemoryDir(path string) string { return h.Dir("memory", path) }

// FreezerDir is the directory with the group's freezer.state (v1) or cgroup.freeze (v2), "" where v1 has no freezer.
func (h *Hierarchy) FreezerDir(path string) string {
	if h.mode == Unified {
		return h.Dir("", path)
	}
	return h.Dir("freezer", path)
}

// SwapAccounted says whether the kernel limits swap by group. The root has no limits, so a group of the machine shows.
func (h *Hierarchy) SwapAccounted() bool {
	root := h.MemoryDir("/")
	if root == "" {
		return false
	}
	if h.mode != Unified {
		return kernfs.Exists(root + "/memory.memsw.limit_in_bytes")
	}
	groups, err := subdirs(root)
	return err == nil && slices.ContainsFunc(groups, func(g string) bool { return kernfs.Exists(root + "/" + g + "/memory.swap.max") })
}

// primary is the hierarchy whose directories stand for a group where one answer is wanted: memory where it is, since
// pids are attached to that one under any configuration.
func primary(h *Hierarchy) string {
	if h.mode == Unified {
		return h.unified
	}
	for _, c := range []string{"memory", "cpu", "pids"} {
		if d, ok := h.byName[c]; ok {
			return d
		}
	}
	return h.trees[0].dir
}

// Exists says whether the group is there in the hierarchy that stands for all.
func (h *Hierarchy) Exists(path string) bool {
	var st unix.Stat_t
	return unix.Stat(primary(h)+clean(path), &st) == nil
}

// Children lists the names of the groups directly inside path, over all hierarchies, sorted. A missing group has none.
func (h *Hierarchy) Children(path string) ([]string, error) {
	return union(h.Dirs(path), subdirs)
}

// Inside lists the names of the groups directly inside path in the hierarchy that stands for all, sorted. A missing
// group has none.
func Inside(h *Hierarchy, path string) ([]string, error) {
	return union([]string{join(primary(h), path)}, subdirs)
}

// union is what the directories of a group have of something, sorted.
func union[T cmp.Ordered](dirs []string, list func(dir string) ([]T, error)) ([]T, error) {
	var out []T
	for _, dir := range dirs {
		part, err := list(dir)
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// group is one group of a hierarchy, by its path in full.
type group struct {
	h    *Hierarchy
	path string
}

// groupAt refuses what [GroupPath] does.
func groupAt(h *Hierarchy, path string) (group, error) {
	path, err := GroupPath(path)
	return group{h, path}, err
}

func subdirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil // ENODEV: removed while we were reading it
	}
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// GroupPath is the path of a group in full. It refuses the root and everything outside, so that no caller's empty
// string ever kills or removes the machine's groups.
func GroupPath(path string) (string, error) {
	if slices.Contains(strings.Split(path, "/"), "..") {
		return "", fmt.Errorf("group %q: %w", path, ErrOutside)
	}
	p := clean(path)
	if p == "/" {
		return "", fmt.Errorf("group %q: %w", path, ErrOutside)
	}
	return p, nil
}

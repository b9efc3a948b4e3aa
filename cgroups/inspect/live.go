package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/cgroups/systemd"
)

// Live says where to look on this machine.
type Live struct {
	CgroupMount string
	CgroupRoot  string
	RunDir      string // of the agent: its socket, and the containers' directories
	LogDir      string // /var/log/pods, whose directory names tell the pods' names
	PodsFile    string // specifications, as `kubectl get pods -o json` prints them
	Endpoint    string // socket of the container runtime; "": those of the usual places
	Manifests   string // directory with the manifests of a kubelet's static pods
	KubeletDir  string // kubelet's root directory, with the states of its CPU and memory managers
	PinsFile    string // where the agent keeps which CPUs and memory nodes it gave to whom
	Options     kube.Options
	Evicts      *kube.Evicts
	NodeName    string        // suffix of static pods' names
	KernelLog   string        // "": /dev/kmsg
	KillsFile   string        // where the agent keeps the last kill of each container
	Patience    time.Duration // with the agent; 0: 5 s
}

// Capture reads the machine: everything there is to see.
func (l Live) Capture(ctx context.Context) (*Snapshot, error) {
	return l.capture(ctx, need{whole: true, kills: true})
}

// capture reads what is needed.
func (l Live) capture(ctx context.Context, n need) (*Snapshot, error) {
	h, err := cgroups.Open(l.CgroupMount)
	if err != nil {
		return nil, err
	}
	s, err := l.captureOf(ctx, h, n)
	if errors.Is(err, errMore) {
		// Nearly never: that there are no others shows as all are read, so that they are not looked for before.
		n.search = true
		s, err = l.captureOf(ctx, h, n)
	}
	return s, err
}

func (l Live) captureOf(ctx context.Context, h *cgroups.Hierarchy, n need) (*Snapshot, error) {
	var err error
	s := &Snapshot{
		Version: snapshotVersion, Time: time.Now(), Groups: map[string]Group{}, Processes: map[int]Process{},
		Machine: Machine{Mode: h.Mode(), CPUs: runtime.NumCPU(), Memory: totalMemory(), Root: l.root(), Options: l.Options, Node: l.NodeName, Evicts: l.Evicts},
	}
	s.Machine.Host, _ = os.Hostname()
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		s.Machine.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if n.whole {
		for _, top := range tops(l.root()) {
			if err := l.walk(ctx, h, top, s); err != nil {
				return nil, err
			}
		}
		err = l.name(ctx, s)
	} else {
		err = l.captureSome(ctx, h, s, n)
	}
	if err != nil {
		return nil, err
	}
	if n.above || n.whole {
		readAbove(h, s)
	}
	if n.kills {
		l.kills(ctx, s)
		l.keptKills(s)
	}
	return s, nil
}

// captureSome finds out which groups there are and whose, and reads of those what is asked for.
func (l Live) captureSome(ctx context.Context, h *cgroups.Hierarchy, s *Snapshot, n need) error {
	s.unmeasured, s.nameOnly = n.unmeasured, n.nameOnly
	layouts, brief := map[string]layout{}, map[string]layout{}
	for _, top := range tops(l.root()) {
		if !h.Exists(top) {
			continue
		}
		walkNames(h.MemoryDir("/"), top, s.Groups)
		if n.search {
			walkOthers(h, top, s.Groups)
		}
		layouts[top] = layoutOf(h, top, n.files)
		if n.others != nil {
			brief[top] = layoutOf(h, top, n.others)
		}
	}
	if err := l.name(ctx, s); err != nil {
		return err
	}
	read := s.Groups
	if n.of != nil && len(s.Groups) > 0 {
		all := s.Groups
		only, err := n.of(s)
		if err != nil {
			return err
		}
		if read = s.Groups; !only {
			s.Groups = all
		}
	}
	d := newReading(h, s, n, read)
	if n.each != nil {
		d.only = n.each(s)
	}
	s.built = nil
	for top, l := range layouts {
		if err := d.top(ctx, top, l, brief[top]); err != nil {
			return err
		}
	}
	if n.partial && !n.search && d.hasMore() {
		return errMore
	}
	return nil
}

// errMore says that there are groups which are not in the hierarchy of memory.
var errMore = errors.New("there are groups that are not in the hierarchy of memory")

func isPod(group string) bool {
	_, ok := podOf(filepath.Base(group))
	return ok
}

// readProcesses reads what the kernel thinks of processes, and of them as a whole what they are called, too.
func readProcesses(r *kernfs.Reader, s *Snapshot, pids []int, whole bool) {
	for _, pid := range pids {
		if p, ok := processOf(r, pid, whole); ok {
			s.Processes[pid] = p
		}
	}
}

// walkOthers finds groups that are in another hierarchy than that of memory alone: where there are more in a group than
// are known.
func walkOthers(h *cgroups.Hierarchy, top string, into map[string]Group) {
	kids := map[string][]string{}
	for p := range into {
		kids[filepath.Dir(p)] = append(kids[filepath.Dir(p)], filepath.Base(p))
	}
	for _, dir := range h.Dirs("/") {
		if dir = strings.TrimSuffix(dir, "/"); dir == strings.TrimSuffix(h.MemoryDir("/"), "/") {
			continue
		}
		parent := kernfs.OpenDir(dir + filepath.Dir(top))
		if _, n, ok := parent.Stat(filepath.Base(top)); ok {
			walkMore(dir, top, parent, n, kids, into)
		}
		parent.Close()
	}
}

// walkMore looks at a group that has n groups in it.
func walkMore(mount, path string, parent kernfs.Dir, n int, kids map[string][]string, into map[string]Group) {
	if n == 0 {
		return
	}
	own := parent.Sub(filepath.Base(path))
	defer own.Close()
	for _, kid := range kids[path] {
		if _, below, ok := own.Stat(kid); ok {
			n--
			walkMore(mount, path+"/"+kid, own, below, kids, into)
		}
	}
	if n == 0 {
		return
	}
	entries, err := os.ReadDir(mount + path)
	if err != nil {
		return
	}
	for _, e := range entries {
		if kid := path + "/" + e.Name(); e.IsDir() && !slices.Contains(kids[path], e.Name()) {
			walkNames(mount, kid, into)
		}
	}
}

func (l Live) root() string { return filepath.Clean("/" + l.CgroupRoot) }

// tops are the groups of all pods with the cgroupfs driver and with the systemd driver.
func tops(root string) []string {
	return []string{strings.TrimSuffix(root, "/") + "/kubepods", systemd.SlicePath(root, "kubepods")}
}

func totalMemory() int64 {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0
	}
	return int64(si.Totalram) * int64(si.Unit)
}

// walk reads a group and those below. Groups come and go meanwhile; what is gone is left out.
func (l Live) walk(ctx context.Context, h *cgroups.Hierarchy, path string, s *Snapshot) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g, ok := readGroup(h, path)
	if !ok {
		return nil
	}
	s.Groups[path] = g
	for _, pid := range g.Pids {
		if p, ok := readProcess(pid); ok {
			s.Processes[pid] = p
		}
	}
	kids, err := h.Children(path)
	if err != nil {
		return err
	}
	for _, k := range kids {
		if err := l.walk(ctx, h, path+"/"+k, s); err != nil {
			return err
		}
	}
	return nil
}

func readGroup(h *cgroups.Hierarchy, path string) (Group, bool) {
	g := Group{Files: map[string]string{}}
	dirs := h.Dirs(path)
	for _, dir := range dirs {
		ino, ok := inode(dir)
		if !ok {
			g.Missing = append(g.Missing, strings.TrimSuffix(dir, path))
			continue
		}
		if g.Inode == 0 || dir == h.MemoryDir(path) {
			g.Inode = ino
		}
		g.Inodes = append(g.Inodes, ino)
		prefix := ""
		if h.Mode() == cgroups.Hybrid && dir == h.Dir("", path) {
			prefix = "unified/"
		}
		readFiles(dir, prefix, &g)
		// What could not be read of a group that went meanwhile is no other value than it should have.
		if now, ok := inode(dir); !ok || now != ino {
			return g, false
		}
	}
	slices.Sort(g.Pids)
	g.Pids = slices.Compact(g.Pids)
	return g, len(g.Missing) < len(dirs)
}

func inode(dir string) (uint64, bool) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, false
	}
	return st.Ino, true
}

// skipped files are large, of no use for the columns, or act when they are read.
func skipped(name string) bool {
	switch name {
	case "tasks", "cgroup.procs", "cgroup.threads", "cgroup.event_control", "memory.numa_stat", "memory.kmem.slabinfo",
		"memory.force_empty", "memory.pressure_level", "cgroup.kill", "memory.reclaim", "cpuacct.usage_percpu",
		"cpuacct.usage_percpu_user", "cpuacct.usage_percpu_sys", "cpuacct.usage_all", "notify_on_release", "irq.pressure":
		return true
	}
	return strings.HasPrefix(name, "devices.") || strings.HasPrefix(name, "memory.kmem.tcp") || strings.HasPrefix(name, "rdma.") ||
		strings.HasPrefix(name, "net_") || strings.HasPrefix(name, "perf_event")
}

func readFiles(dir, prefix string, g *Group) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() || skipped(e.Name()) {
			continue
		}
		data, err := os.ReadFile(dir + "/" + e.Name())
		if err != nil {
			continue // write-only, or switched off
		}
		g.Files[prefix+e.Name()] = string(data)
	}
	if data, err := os.ReadFile(dir + "/cgroup.procs"); err == nil {
		g.Pids = append(g.Pids, cgroups.ParsePids(data)...)
	}
}

func readProcess(pid int) (Process, bool) { return processOf(&kernfs.Reader{}, pid, true) }

// processOf reads of a process its place in the order of the OOM killer, and its name and what it was adjusted by if it
// is wanted as a whole.
func processOf(r *kernfs.Reader, pid int, whole bool) (p Process, ok bool) {
	dir := "/proc/" + strconv.Itoa(pid) + "/"
	if whole {
		comm, err := r.Read(dir + "comm")
		if err != nil {
			return p, false
		}
		p.Comm, p.OOMScoreAdj = strings.TrimSpace(comm), readInt(r, dir+"oom_score_adj")
	}
	text, err := r.Read(dir + "statm")
	if err != nil {
		return p, whole
	}
	if f := strings.Fields(text); len(f) > 1 {
		pages, _ := strconv.ParseInt(f[1], 10, 64)
		p.RSS = pages * int64(os.Getpagesize())
	}
	p.OOMScore = readInt(r, dir+"oom_score")
	return p, true
}

func readInt(r *kernfs.Reader, path string) int {
	text, err := r.Read(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(text))
	return n
}

var errNoPods = errors.New("no pods' groups are on this machine")

// mustHaveGroups tells the reader of an empty answer why it is empty.
func mustHaveGroups(s *Snapshot) error {
	if len(s.Groups) > 0 {
		return nil
	}
	return noGroups(s.Machine.Root)
}

func noGroups(root string) error {
	return fmt.Errorf("looked for %s: %w (--run-dir tells of an agent, --cgroup-root where kubepods is)", strings.Join(tops(root), " and "), errNoPods)
}

// mustHaveGroups is that for who looks again and again.
func (l Live) mustHaveGroups(h *cgroups.Hierarchy) error {
	if slices.ContainsFunc(tops(l.root()), h.Exists) {
		return nil
	}
	return noGroups(l.root())
}

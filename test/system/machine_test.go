package system

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// leftovers lists everything on the machine that belongs to the node: what the kernel says, not what our records say.
// The node's directories, its bridge and its cgroup root are all named after it, so that nothing of a neighbour is
// listed.
func (n *Node) leftovers() []string {
	var left []string
	left = append(left, n.mounts()...)
	left = append(left, n.cgroups()...)
	left = append(left, n.units()...)
	left = append(left, n.links()...)
	left = append(left, n.processes()...)
	return left
}

// mounts lists the mount points of our mount namespace below the node's directory.
func (n *Node) mounts() []string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], n.Dir+"/") {
			out = append(out, "mount "+f[4])
		}
	}
	return out
}

// cgroups lists the groups of the node in every hierarchy.
func (n *Node) cgroups() []string {
	var out []string
	roots, _ := filepath.Glob("/sys/fs/cgroup/*" + n.CgroupRoot)
	if _, err := os.Stat("/sys/fs/cgroup" + n.CgroupRoot); err == nil {
		roots = append(roots, "/sys/fs/cgroup"+n.CgroupRoot)
	}
	for _, root := range roots {
		filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				out = append(out, "cgroup "+p)
			}
			return nil
		})
	}
	return out
}

// links lists the node's bridge and the interfaces on it.
func (n *Node) links() []string {
	var out []string
	ifs, err := net.Interfaces()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, i := range ifs {
		master, _ := os.Readlink("/sys/class/net/" + i.Name + "/master")
		if i.Name == n.Bridge || filepath.Base(master) == n.Bridge {
			out = append(out, "link "+i.Name)
		}
	}
	return out
}

// processes lists the processes that are in one of the node's cgroups, or that name its directory on their command
// line.
func (n *Node) processes() []string {
	var out []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		if pid == os.Getpid() {
			continue
		}
		cg, _ := os.ReadFile(d + "/cgroup")
		cmd, _ := os.ReadFile(d + "/cmdline")
		if bytes.Contains(cg, []byte(":"+n.CgroupRoot+"/")) || bytes.Contains(cmd, []byte(n.Dir)) {
			out = append(out, fmt.Sprintf("process %d %s", pid, strings.ReplaceAll(string(cmd), "\x00", " ")))
		}
	}
	return out
}

// podLeftovers is what of pods is on a node that should have none: the node's own bridge and QoS groups may stay.
func (n *Node) podLeftovers() []string {
	var out []string
	agent := "none"
	switch {
	case n.cmd != nil:
		agent = strconv.Itoa(n.cmd.Process.Pid)
	case n.service != "":
		agent = systemctl(n.t, "show", "-p", "MainPID", "--value", n.service)
	}
	for _, l := range n.leftovers() {
		name := strings.TrimPrefix(l, "cgroup ")
		switch {
		case strings.HasPrefix(l, "cgroup ") && !strings.Contains(name, "/pod") && !strings.Contains(name, "-pod"):
		case strings.HasPrefix(l, "unit ") && !strings.Contains(l, "-pod"):
		case l == "link "+n.Bridge:
		// tmpfs of the node's own
		case strings.HasPrefix(l, "mount ") && filepath.Dir(strings.TrimPrefix(l, "mount ")) == n.Dir+"/run":
		case strings.HasPrefix(l, "process "+agent+" "):
		case slices.ContainsFunc(n.others, func(pid int) bool { return strings.HasPrefix(l, fmt.Sprintf("process %d ", pid)) }):
		case n.peer != nil && strings.HasPrefix(l, fmt.Sprintf("process %d ", n.peer.Pid())):
		case n.peer != nil && l == "mount "+n.peer.Dir+"/root/overlay": // CRI-O's own
		case strings.HasPrefix(l, "mount ") && slices.Contains(n.disks, strings.TrimPrefix(l, "mount ")):
		default:
			out = append(out, l)
		}
	}
	for _, dir := range []string{"run/netns", "run/sandboxes", "run/containers", "root/pods", "logs"} {
		entries, _ := os.ReadDir(filepath.Join(n.Dir, dir))
		for _, e := range entries {
			out = append(out, "entry "+dir+"/"+e.Name())
		}
	}
	return out
}

// requireNoPods waits until nothing of any pod is left. The kernel takes a network namespace's veth away in its own
// time, so the machine is looked at again until it is clean; the time is only a limit for a test that has failed.
func (n *Node) requireNoPods() {
	n.t.Helper()
	n.eventually("nothing of a pod to be left", func() error {
		if n.peer != nil {
			n.peer.EndLost(n.t)
		}
		if left := n.podLeftovers(); len(left) > 0 {
			return fmt.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}

// long says that tests are wanted at their full length, which CI has no time for (`make test-long`).
func long() bool { return os.Getenv("BERTH_TEST_LONG") != "" }

// chances are those that a test takes; BERTH_TEST_SEED has it take those of another run.
func chances(t *testing.T) *rand.Rand {
	seed, err := strconv.ParseUint(os.Getenv("BERTH_TEST_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("BERTH_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// limit is how long a condition may take before a test is called failed: long, since a busy machine is no failure and
// only what fails waits for it. BERTH_TEST_LIMIT is for machines that are emulated.
var limit = func() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("BERTH_TEST_LIMIT")); err == nil {
		return d
	}
	return 3 * time.Minute
}()

// eventually runs check until it returns nil. It looks again after some times as long as the look took: one that runs
// programs or reads all of /proc would take the CPU that what is waited for needs.
func (n *Node) eventually(what string, check func() error) {
	n.t.Helper()
	eventually(n.t, what, check)
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		began := time.Now()
		err := check()
		if err == nil {
			return
		}
		if began.After(deadline) {
			t.Fatalf("waited for %s: %v", what, err)
		}
		time.Sleep(min(max(20*time.Millisecond, 4*time.Since(began)), time.Second))
	}
}

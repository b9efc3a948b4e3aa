package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// opened counts how often the files of the groups below root are opened while fn runs, as the kernel tells.
func opened(t *testing.T, h *cgroups.Hierarchy, root string, fn func()) int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	groups := map[string]Group{}
	for _, dir := range h.Dirs("/") {
		walkNames(strings.TrimSuffix(dir, "/"), root, groups)
	}
	for g := range groups {
		for _, dir := range h.Dirs(g) {
			if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_OPEN); err != nil && !errors.Is(err, unix.ENOENT) {
				t.Fatal(err)
			}
		}
	}
	fn()
	n := 0
	buf := make([]byte, 64<<10)
	for {
		k, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+unix.SizeofInotifyEvent <= k; n++ {
			name := int(buf[i+12]) | int(buf[i+13])<<8 // the event's length field, small
			i += unix.SizeofInotifyEvent + name
		}
	}
}

// A command opens what it shows and no more.
func TestCommandsReadWhatTheyNeed(t *testing.T) {
	live, h, pods := node(t)
	nginx := kube.NewTree(h, live.CgroupRoot).PodPath(&pods[1]) + "/" + strings.Repeat("bbb0", 16)
	pids, err := h.Pids(nginx)
	if err != nil || len(pids) == 0 {
		t.Fatalf("%v, %v", pids, err)
	}
	ino, ok := inode(h.Dir("cpu", nginx))
	if !ok {
		t.Fatal("the group is gone")
	}
	groups := map[string]Group{}
	walkNames(h.MemoryDir("/"), live.CgroupRoot+"/kubepods", groups)
	run := func(args ...string) string {
		out, err := execute(t, append(args, "--cgroup-root", live.CgroupRoot, "--pods", live.PodsFile, "--log-dir", live.LogDir)...)
		if err != nil && !errors.Is(err, ErrProblems) {
			t.Errorf("%v: %v", args, err)
		}
		return out
	}
	walk := 2 * len(groups) // each directory is listed, and the first ones of each hierarchy once more
	for _, c := range []struct {
		args  []string
		most  int // files that may be opened, beside directories to list
		wants string
	}{
		{[]string{"find", fmt.Sprint(pids[0])}, 0, "nginx"},
		{[]string{"find", fmt.Sprintf("inode:%d", ino)}, 0, "nginx"},
		{[]string{"find", strings.Repeat("bbb0", 16)}, 0, "nginx"},
		{[]string{"find", "berth://" + strings.Repeat("bbb0", 4)}, 0, "nginx"},
		{[]string{"find", string(pods[1].UID)}, 0, "default/web"},
		{[]string{"find", "default/web/nginx"}, 0, "nginx"},
		{[]string{"find", "web"}, 0, "default/web"},
		{[]string{"tree", "-p", "pids"}, 4 * len(groups), "nginx"},
		{[]string{"tree"}, 20 * len(groups), "nginx"},
		{[]string{"tree", "-p", "memory"}, 8 * len(groups), "nginx"},
		{[]string{"tree", "-o", "json"}, 20 * len(groups), "nginx"},
		{[]string{"show", "web/nginx"}, 80, "cpu.shares"},
		{[]string{"explain", "web"}, 200 + 4*len(groups), "nginx"}, // of others what ranks them
		{[]string{"check"}, 10 * len(groups), "orphan"},
	} {
		var out string
		n := opened(t, h, live.CgroupRoot+"/kubepods", func() { out = run(c.args...) })
		if !strings.Contains(out, c.wants) && !strings.Contains(out, "cpu.weight") {
			t.Errorf("%v does not say %q:\n%s", c.args, c.wants, out)
		}
		if n > c.most+walk+20 {
			t.Errorf("%v opens %d files of %d groups", c.args, n, len(groups))
		}
		t.Logf("%v: %d opens for %d groups", c.args, n, len(groups))
	}
	all := opened(t, h, live.CgroupRoot+"/kubepods", func() {
		if _, err := live.Capture(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Logf("a capture: %d", all)

	// A group may be in one hierarchy alone, and miss in one alone.
	stray := h.Dir("pids", nginx) + "/stray"
	if err := os.Mkdir(stray, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(stray)

	// What little is read gives what all gives.
	var some struct{ Problems []Problem }
	if err := json.Unmarshal([]byte(run("check", "-o", "json")), &some); err != nil {
		t.Fatal(err)
	}
	s, err := live.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	whole := audit{s, s.Machine.Options}.problems()
	if !strings.Contains(fmt.Sprint(whole), "/stray") {
		t.Errorf("a group that is no container's is not told of: %v", whole)
	}
	if fmt.Sprint(some.Problems) != fmt.Sprint(whole) {
		t.Errorf("check says\n%v\nand with everything read\n%v", some.Problems, whole)
	}
	var e Explanation
	if err := json.Unmarshal([]byte(run("explain", "web", "-o", "json")), &e); err != nil {
		t.Fatal(err)
	}
	n, err := s.nodes().lookup("web")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ranking(e), ranking(explain(n, byUsage)); got != want {
		t.Errorf("explain ranks\n%s\nand with everything read\n%s", got, want)
	}
}

// TestStill: of what no group has counted those below have counted nothing; of all else the files are read.
func TestStill(t *testing.T) {
	const none, some = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", "some avg10=0.00 avg60=0.00 avg300=0.00 total=40\n"
	for _, c := range []struct {
		file, text string
		want       bool
	}{
		{"memory.pressure", none + strings.Replace(none, "some", "full", 1), true},
		{"memory.pressure", none + strings.Replace(some, "some", "full", 1), false},
		{"cpu.pressure", some, false},
		{"io.pressure", none, true},
		{"blkio.throttle.io_serviced_recursive", "Total 0\n", true},
		{"blkio.throttle.io_serviced_recursive", "8:0 Read 1\nTotal 1\n", false},
		{"io.stat", "", true},
		{"io.stat", "8:0 rbytes=1\n", false},
		{"memory.events", "oom_kill 0\n", false},
		{"memory.stat", "", false},
		{"cpu.stat", "", false},
	} {
		if got := still(c.file, c.text); got != c.want {
			t.Errorf("%s of %q: %v", c.file, c.text, got)
		}
	}
}

// ranking is how a pod and its processes stand among all, with the names that are told and without what changes all the
// time.
func ranking(e Explanation) string {
	var names []string
	for _, r := range e.OOMOrder {
		names = append(names, fmt.Sprintf("%d %s %s %d of %d", r.Pid, r.Comm, r.Container, r.OOMScoreAdj, r.Of))
	}
	slices.Sort(names)
	return fmt.Sprintf("%v, to be evicted as number %d of %d, %v, %v", names, e.Evictable.Rank, e.Evictable.Of, e.Limits, e.Tightest)
}

// Each column shows of what it needs what it shows of everything.
func TestColumnsNeedWhatTheySay(t *testing.T) {
	all, err := loadColumns()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"v1-hybrid", "v2", "v2-systemd"} {
		for name := range all.Columns {
			cols, err := all.list([]string{name})
			if err != nil {
				t.Fatal(err)
			}
			s, err := Load("testdata/" + file + ".json.gz")
			if err != nil {
				t.Fatal(err)
			}
			var whole, some strings.Builder
			if err := printTree(&whole, s.nodes(), cols, 0); err != nil {
				t.Fatal(err)
			}
			n := columnsNeed(cols)
			for _, g := range s.Groups {
				for f := range g.Files {
					if !n.files[f] && !n.files[strings.TrimPrefix(f, "unified/")] {
						delete(g.Files, f)
					}
				}
			}
			s.built = nil
			if err := printTree(&some, s.nodes(), cols, 0); err != nil {
				t.Fatal(err)
			}
			if whole.String() != some.String() {
				t.Errorf("%s, column %s: of %v\n%s\nof everything\n%s", file, name, n.files, &some, &whole)
			}
		}
	}
}

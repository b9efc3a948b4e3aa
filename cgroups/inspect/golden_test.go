package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// execute runs `berth cgroups ARGS` and returns what it prints.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := Command(func() string { return t.TempDir() }, byUsage)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// The commands' output for captures of real machines is compared with what it was when somebody last looked at it.
func TestGolden(t *testing.T) {
	captures, err := filepath.Glob("testdata/*.json.gz")
	if err != nil || len(captures) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	for _, c := range captures {
		machine := strings.TrimSuffix(filepath.Base(c), ".json.gz")
		for name, args := range map[string][]string{
			"tree":         {"tree"},
			"tree-wide":    {"tree", "-o", "wide"},
			"tree-cpu":     {"tree", "-p", "cpu"},
			"tree-memory":  {"tree", "-p", "memory"},
			"tree-io":      {"tree", "-p", "io"},
			"tree-psi":     {"tree", "-p", "psi"},
			"tree-pids":    {"tree", "-p", "pids"},
			"tree-cpuset":  {"tree", "-p", "cpuset"},
			"tree-swap":    {"tree", "-p", "swap"},
			"tree-columns": {"tree", "--columns", "cpu,memory.stat:pgfault=count,cpu.stat:nr_periods"},
			"show":         {"show", "default/web"},
			"show-one":     {"show", "changed/app"},
			"show-class":   {"show", "burstable"},
			"explain":      {"explain", "web"},
			"explain-best": {"explain", "ccc33333"},
			"explain-oom":  {"explain", map[string]string{"v2-systemd": "ddd44444"}[machine]},
			"show-whole":   {"show", map[string]string{"v2-systemd": "whole"}[machine]},
			"check":        {"check"},
			"find-path":    {"find", "/sys/fs/cgroup/kubepods/burstable/podbbb22222-2222-4222-8222-222222222222/bbb1bbb1bbb1bbb1bbb1bbb1bbb1bbb1bbb1bbb1bbb1bbb1bbb1bbb1bbb1bbb1/below"},
			"find-pid":     {"find", map[string]string{"v1-hybrid": "28966", "v2": "293", "v2-systemd": "571"}[machine]},
		} {
			switch {
			case machine == "v2-systemd" && name == "show-one":
				args = []string{"show", "web/proxy"}
			case machine == "v2-systemd" && name == "find-path":
				args = []string{"find", "/sys/fs/cgroup/kubepods.slice/kubepods-podaaa11111_1111_4111_8111_111111111111.slice"}
			}
			if args[len(args)-1] == "" {
				continue // the machine has none
			}
			t.Run(machine+"/"+name, func(t *testing.T) {
				got, err := execute(t, append(args, "--from", c)...)
				if err != nil && !errors.Is(err, ErrProblems) {
					t.Fatal(err)
				}
				golden(t, filepath.Join("testdata", machine, name+".txt"), got)
			})
		}
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-update writes it again); got\n%s", path, got)
	}
}

func TestOutputsForScripts(t *testing.T) {
	c := "testdata/v1-hybrid.json.gz"
	for _, args := range [][]string{{"tree"}, {"show", "web"}, {"explain", "web"}, {"check"}, {"find", "/kubepods/burstable/podbbb22222-2222-4222-8222-222222222222"}} {
		got, err := execute(t, append(args, "--from", c, "-o", "json")...)
		if err != nil && !errors.Is(err, ErrProblems) {
			t.Errorf("%v: %v", args, err)
		}
		if !json.Valid([]byte(got)) {
			t.Errorf("%v: %s", args, got)
		}
	}
	if _, err := execute(t, "check", "--from", c); !errors.Is(err, ErrProblems) {
		t.Errorf("check of a tree with problems = %v", err)
	}
	for _, args := range [][]string{{"tree"}, {"check"}, {"top", "-n", "1"}, {"find", "1"}} {
		if got, err := execute(t, append(args, "--cgroup-root", "/berth-test-none")...); err == nil || errors.Is(err, ErrProblems) || strings.Contains(got, "should be") {
			t.Errorf("%v where no groups are = %v\n%s", args, err, got)
		}
	}
	for _, args := range [][]string{{"show", "nobody"}, {"show", "web/nothing"}, {"find", "1"}, {"explain", "default/web/none"}} {
		if _, err := execute(t, append(args, "--from", c)...); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v = %v", args, err)
		}
	}
	for _, args := range [][]string{{"tree", "-o", "xml"}, {"tree", "-p", "none"}, {"tree", "--columns", "none"}, {"top"}, {"watch"}} {
		if _, err := execute(t, append(args, "--from", c)...); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
}

// A capture of a capture says the same.
func TestCaptureRoundTrip(t *testing.T) {
	copied := filepath.Join(t.TempDir(), "copy.json")
	first, err := execute(t, "tree", "-o", "wide", "--from", "testdata/v1-hybrid.json.gz", "--capture", copied)
	if err != nil {
		t.Fatal(err)
	}
	second, err := execute(t, "tree", "-o", "wide", "--from", copied)
	if err != nil || first != second {
		t.Errorf("%v\n%s\n%s", err, first, second)
	}
}

// TestSystemdNames has the names at the top, and with a --cgroup-root, which each of them repeats.
func TestSystemdNames(t *testing.T) {
	const uid = "aaa11111-1111-4111-8111-111111111111"
	for root, in := range map[string][2]string{"/": {"/", ""}, "/my-node": {"/my_node.slice/", "my_node-"}} {
		top := in[0] + in[1] + "kubepods"
		burstable := top + ".slice/" + in[1] + "kubepods-burstable"
		pod := burstable + ".slice/" + in[1] + "kubepods-burstable-podaaa11111_1111_4111_8111_111111111111.slice"
		s := &Snapshot{Machine: Machine{Root: root}, Groups: map[string]Group{
			top + ".slice": {}, burstable + ".slice": {}, pod: {}, pod + "/cri-containerd-0123456789abcdef.scope": {},
			top + ".slice/" + in[1] + "kubepods-podbbb.slice": {}, top + ".slice/other.service": {},
		}, Names: map[string]Identity{uid: {Namespace: "ns", Name: "web", Containers: map[string]string{"0123456789abcdef": "app"}}}}
		var got []string
		for _, n := range s.nodes().all() {
			got = append(got, string(n.Kind)+" "+string(n.Class)+" "+n.UID+" "+n.Title)
		}
		want := []string{
			"node Guaranteed  kubepods", "class Burstable  burstable", "pod Burstable " + uid + " ns/web", "container Burstable " + uid + " app",
			"pod Guaranteed bbb bbb", "group Guaranteed  other.service",
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("below %s: got\n%s\nwant\n%s", root, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestDifferences(t *testing.T) {
	var prev, cur cgroups.Usage
	prev.Memory.Limit, cur.Memory.Limit = cgroups.NoLimit, 64<<20
	prev.CPU.QuotaUs = cgroups.NoLimit
	cur.CPU.QuotaUs, cur.CPU.PeriodUs = 50000, 100000
	var got []string
	for _, d := range differences(prev, cur) {
		got = append(got, d[0]+": "+d[1])
	}
	want := []string{
		"limit: memory max -> 64Mi",
		"limit: cpu max -> 0.5 cores",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	if d := differences(cur, cur); len(d) != 0 {
		t.Errorf("nothing happened, but %v", d)
	}
}

func TestTopAndWatchLive(t *testing.T) {
	live, h, pods := node(t)
	a := &app{live: live, runDir: t.TempDir, output: ""}
	m, err := newMonitor(live)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	var out bytes.Buffer
	if err := a.plainTop(t.Context(), &out, m, topOptions{every: 300e6, sort: "cpu", count: 2, containers: true}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"NAME ", "default/web/nginx ", "default/web/logger ", "default/db/postgres "} {
		if strings.Count(out.String(), name) != 2 {
			t.Errorf("no two lines of %s:\n%s", name, out.String())
		}
	}
	busy := func() bool { // a slow machine may give a throttled container nothing in one interval
		if err := m.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		rows := m.rows("cpu", true)
		i := slices.IndexFunc(rows, func(r Row) bool { return r.Name == "default/web/nginx" })
		return i >= 0 && rows[i].Cores > 0 && rows[i].Quota != nil && *rows[i].Quota == 0.1
	}
	for deadline := time.Now().Add(time.Minute); !busy(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the busy container does nothing: %+v", m.rows("cpu", true))
		}
	}
	s := screen{ctx: t.Context(), m: m, o: topOptions{sort: "cpu"}, width: 100, height: 10, rows: m.rows("cpu", false)}
	if text := s.draw(); !strings.Contains(text, "default/db") || strings.Count(text, "\n") > 10 {
		t.Errorf("screen:\n%s", text)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := &until{cancel: cancel, words: []string{"memory 256Mi", "cpu 1 ->", "removed"}}
	tree := kube.NewTree(h, live.CgroupRoot)
	pods[0].Spec.Containers[0].Resources = makeContainer("x", nil, amount("cpu", "500m", "memory", "128Mi")).Resources
	w.after = func() {
		path := tree.PodPath(&pods[0])
		_, id, _ := strings.Cut(pods[0].Status.ContainerStatuses[0].ContainerID, "://")
		c := kube.Target{Path: path + "/" + id, Resources: kube.ContainerResources(&pods[0], &pods[0].Spec.Containers[0], kube.Options{})}
		if err := kube.Resize(h, kube.Target{Path: path, Resources: kube.PodResources(&pods[0], kube.Options{})}, []kube.Target{c}, nil); err != nil {
			t.Error(err)
		}
		if err := tree.RemovePod(context.Background(), pods[2].UID, ""); err != nil {
			t.Error(err)
		}
	}
	if err := a.watch(ctx, w, 100*time.Millisecond); err != nil {
		t.Error(err)
	}
	if !strings.Contains(w.text.String(), "memory 256Mi -> 128Mi") || !strings.Contains(w.text.String(), "cpu 1 -> 0.5 cores") {
		t.Errorf("events:\n%s", w.text.String())
	}
}

// until collects events, acts at the first one (the busy container is throttled, so there is one), and cancels when all
// words were seen.
type until struct {
	text   strings.Builder
	words  []string
	after  func()
	cancel context.CancelFunc
}

func (u *until) Write(p []byte) (int, error) {
	u.text.Write(p)
	if u.after != nil {
		u.after()
		u.after = nil
	}
	for _, w := range u.words {
		if !strings.Contains(u.text.String(), w) {
			return len(p), nil
		}
	}
	u.cancel()
	return len(p), nil
}

func TestSortRows(t *testing.T) {
	rows := []Row{{Name: "a", Cores: 1, Memory: 3}, {Name: "b", Cores: 2, Memory: 1, IOPSI: 9}, {Name: "c", Cores: 2, Throttled: 5, Read: 1}}
	for by, want := range map[string]string{"cpu": "bca", "memory": "abc", "throttled": "cab", "io": "cab", "pressure": "bac", "name": "abc"} {
		sortRows(rows, by)
		if got := rows[0].Name + rows[1].Name + rows[2].Name; got != want {
			t.Errorf("by %s: %s, want %s", by, got, want)
		}
	}
}

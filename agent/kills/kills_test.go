package kills

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/cgroups/oom"
)

// world is a node in memory: /x/pod-UID/ID are its groups.
type world struct {
	pods   []*corev1.Pod
	groups map[string]uint64 // containers' IDs with their counts of kills
	pids   []int
	told   []string
	log    bytes.Buffer
	listen chan struct{}
}

func (w *world) Top() string { return "/x" }

func (w *world) Owner(group string) (uid types.UID, container string, ok bool) {
	rest, ok := strings.CutPrefix(group, "/x/pod-")
	name, rest, _ := strings.Cut(rest, "/")
	id, _, _ := strings.Cut(rest, "/")
	return types.UID(name), id, ok
}

func (w *world) Named(group string) (string, bool) { return "the group of all pods", group == "/x" }

func (w *world) Containers(p *corev1.Pod) (map[string]string, error) {
	out := map[string]string{}
	for id := range w.groups {
		if strings.HasPrefix(id, string(p.UID)) {
			out[id] = "/x/pod-" + string(p.UID) + "/" + id
		}
	}
	return out, nil
}

func (w *world) Count(group string) (uint64, error) { return w.groups[filepath.Base(group)], nil }

func (w *world) Look(groups ...string) []oom.Figures {
	return []oom.Figures{{Group: groups[0], Usage: 8 << 20, Limit: 32 << 20, Peak: 32 << 20}}
}

func (w *world) Pids(string) ([]int, error) { return w.pids, nil }

func (w *world) Listen() (<-chan struct{}, func(), error) { return w.listen, func() {}, nil }

func (w *world) Event(p *corev1.Pod, _, reason, format string, args ...any) {
	w.told = append(w.told, reason+" "+p.Name+" "+fmt.Sprintf(format, args...))
}

// add adds a pod with one container that runs, whose ID begins with the pod's UID.
func (w *world) add(name, id string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", ContainerID: "berth://" + id, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	w.pods = append(w.pods, p)
	return p
}

// end has a pod's container be over.
func end(p *corev1.Pod, reason string) {
	s := &p.Status.ContainerStatuses[0]
	s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: s.ContainerID, ExitCode: 137, Reason: reason}}
}

func (w *world) manager(dir string) *Manager {
	return New(Config{
		RootDir: dir, Groups: w, Pods: func() []*corev1.Pod { return w.pods }, Events: w,
		Watch: func(ctx context.Context, _ func(watch.EventType, *corev1.Pod) error) error { <-ctx.Done(); return nil },
		Node:  func() *oom.NodeFigures { return &oom.NodeFigures{Available: 1 << 30} },
		Log:   slog.New(slog.NewTextHandler(&w.log, nil)),
	})
}

var at = time.Now()

func kill(group, comm string, pid int, seq uint64) heard {
	return heard{Kill: oom.Kill{Time: at, Pid: pid, Comm: comm, Group: group, Anon: 1 << 20, Seq: seq}}
}

// describe is what is kept, a word a report.
func describe(k *Manager) string {
	var out []string
	for _, r := range k.Reports() {
		after := "?"
		if r.After != nil {
			after = string(r.After.State)
		}
		out = append(out, fmt.Sprintf("%s/%s:%s:%d+%d:%s", r.Pod, r.Container, r.Kill.Comm, r.Before, r.Count, after))
	}
	return strings.Join(out, " ")
}

func requireKept(t *testing.T, k *Manager, want string) {
	t.Helper()
	if got := describe(k); got != want {
		t.Errorf("kept:\n%s, want\n%s", got, want)
	}
}

// TestReports: a child that is killed, a whole group, and kills that are nobody's here, over a restart.
func TestReports(t *testing.T) {
	w, dir := &world{groups: map[string]uint64{}, pids: []int{1, 2}}, t.TempDir()
	child, whole := w.add("child", "child-1"), w.add("whole", "whole-1")
	k := w.manager(dir)
	second := kill("/x/pod-whole/whole-1", "d", 31, 104)
	second.With = 30
	burst := []heard{
		kill("/x/pod-child/child-1/below", "a\x1b", 10, 101), kill("/kubepods/pod1/c", "another agent's", 4, 102),
		kill("/xother/pod-child/c", "a stranger's", 4, 102), kill("/x/pod-whole/whole-1", "c", 30, 103), second,
	}
	k.settle(burst)
	if len(w.told) != 2 || !strings.Contains(w.told[0], "OOMKilling child container main: process 10 (a?) was killed") || !strings.Contains(w.told[1], "2 processes were killed in all") {
		t.Errorf("told %q", w.told)
	}
	requireKept(t, k, "child/main:a\x1b:0+1:? whole/main:c:0+2:?")
	end(whole, "OOMKilled")
	k.step(time.Now().Add(runsFor - time.Second))
	requireKept(t, k, "child/main:a\x1b:0+1:? whole/main:c:0+2:ended")
	// An agent that is killed in between goes on with what is not known yet, and tells nothing twice.
	k = w.manager(dir)
	k.settle(burst)
	if len(w.told) != 2 {
		t.Errorf("told again: %q", w.told)
	}
	w.pids = []int{1, 10} // it is dying
	k.step(time.Now().Add(runsFor + time.Second))
	requireKept(t, k, "child/main:a\x1b:0+1:? whole/main:c:0+2:ended")
	w.pids = []int{1}
	k.step(time.Now().Add(runsFor + time.Second))
	requireKept(t, k, "child/main:a\x1b:0+1:runs whole/main:c:0+2:ended")
	if r := k.Reports()[0]; r.Groups[0].Peak != 32<<20 || r.Node.Available != 1<<30 || r.After.Describe() != "only a child was killed: the container runs on without it" {
		t.Errorf("%+v", r)
	}
	k.settle([]heard{kill("/x/pod-child/child-1", "b", 11, 110)})
	requireKept(t, k, "child/main:a\x1b:0+1:runs whole/main:c:0+2:ended child/main:b:1+1:?")
	_ = child
	w.pods = w.pods[1:]
	k.step(time.Now().Add(nameFor))
	requireKept(t, k, "child/main:a\x1b:0+1:runs whole/main:c:0+2:ended child/main:b:1+1:gone")
}

// TestReportsAreBounded has containers that are killed again and again.
func TestReportsAreBounded(t *testing.T) {
	w, dir := &world{}, t.TempDir()
	w.add("web", "web-1")
	k := w.manager(dir)
	seq := uint64(0)
	for i := range 120 {
		for range 5 {
			seq++
			one := kill(fmt.Sprintf("/x/pod-p%d/c%d", i/30, i), "a", 1, seq)
			one.Dump = &oom.Dump{Group: "/x"}
			k.settle([]heard{one})
		}
	}
	reports, full := k.Reports(), 0
	for _, r := range reports {
		if r.Kill.Dump != nil {
			full++
		}
	}
	if len(reports) != 4*maxPod || full != len(reports) {
		t.Errorf("%d reports, %d with a dump", len(reports), full)
	}
	for i := range maxReports + 5 {
		seq++
		one := kill(fmt.Sprintf("/x/pod-q%d/q%d", i, i), "a", 1, seq)
		one.Dump = &oom.Dump{Group: "/x"}
		k.settle([]heard{one})
	}
	full = 0
	for _, r := range k.Reports() {
		if r.Kill.Dump != nil {
			full++
		}
	}
	if reports = k.Reports(); len(reports) != maxReports || full != maxFull {
		t.Errorf("%d reports, %d with a dump", len(reports), full)
	}
}

// TestWithoutLog: the counters and statuses of containers say that there were kills, once for each.
func TestWithoutLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, dir := &world{groups: map[string]uint64{"web-1": 0}, pids: []int{1}, listen: make(chan struct{}, 1)}, t.TempDir()
		w.add("web", "web-1")
		gone := w.add("gone", "gone-1")
		k := w.manager(dir)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); k.count(ctx) }()
		synctest.Wait()
		w.groups["web-1"] = 2
		w.listen <- struct{}{} // the kernel tells at once
		synctest.Wait()
		if len(w.told) != 1 || !strings.Contains(w.told[0], "container main: a process was killed for want of memory, as the counters of its group say; 2 processes") ||
			!strings.Contains(w.told[0], "8192Ki of its limit of 32Mi, 32Mi at most") {
			t.Errorf("told %q", w.told)
		}
		end(gone, "OOMKilled")
		w.groups["web-1"] = 3
		k.changed <- struct{}{} // or the pods do
		synctest.Wait()
		requireKept(t, k, "web/main::0+2:? web/main::2+1:? gone/main::0+1:ended")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		requireKept(t, k, "web/main::0+2:runs web/main::2+1:runs gone/main::0+1:ended")
		cancel()
		<-done
		// The next agent tells none of them again.
		k = w.manager(dir)
		if k.reckon(nil) || len(w.told) != 3 {
			t.Errorf("told %q", w.told)
		}
		if r := k.Reports(); r[0].Source != oom.FromCounts || r[2].Source != oom.FromStatus {
			t.Errorf("%+v", r)
		}
	})
}

// TestKillsWithoutGroup are told by a log that has too much to tell: the counters say where they were.
func TestKillsWithoutGroup(t *testing.T) {
	w := &world{groups: map[string]uint64{"web-1": 1, "web-2": 0}}
	w.add("web", "web-1")
	k := w.manager(t.TempDir())
	k.settle([]heard{kill("", "a", 5, 1), kill("", "a stranger's", 6, 2)})
	requireKept(t, k, "web/main:a:0+1:?")
	if r := k.Reports()[0]; r.Source != oom.FromLog || r.Kill.Anon != 1<<20 || r.Kill.Group != "/x/pod-web/web-1" {
		t.Errorf("%+v", r)
	}
}

// TestFiles: the file of an earlier berth is read, one that is torn is put aside, and that of a later one stays.
func TestFiles(t *testing.T) {
	const first = `{"version":1,"kills":[{"time":"2026-01-02T03:04:05Z","pid":7,"comm":"old","anonBytes":1,"group":"/x/pod-web/web-1"}]}`
	for _, c := range []struct {
		data, kept string
		aside      bool
		said       string
		stays      bool
	}{
		{first, "/:old:0+1:?", false, "", false},
		{first[:50], "", true, "are lost", false},
		{`{"version":9}`, "", false, "later version", true},
		{"", "", true, "are lost", false},
	} {
		w, dir := &world{}, t.TempDir()
		file := filepath.Join(dir, File)
		if err := os.WriteFile(file, []byte(c.data), 0o600); err != nil {
			t.Fatal(err)
		}
		k := w.manager(dir)
		requireKept(t, k, c.kept)
		_, err := os.Stat(file + ".bad")
		if aside := err == nil; aside != c.aside || !strings.Contains(w.log.String(), c.said) {
			t.Errorf("%q: aside %t, said %s", c.data, aside, w.log.String())
		}
		k.settle([]heard{kill("/x/pod-web/web-2", "new", 8, 1)})
		got, err := os.ReadFile(file)
		if stays := string(got) == c.data; err != nil || stays != c.stays {
			t.Errorf("%q is %q, %v", c.data, got, err)
		}
	}
}

// TestOldKillIsNotToldAgain has the file of an agent that did not write down how far it had read the log.
func TestOldKillIsNotToldAgain(t *testing.T) {
	w, dir := &world{}, t.TempDir()
	w.add("web", "web-1")
	data := fmt.Sprintf(`{"version":1,"kills":[{"time":%q,"pid":7,"comm":"a","anonBytes":1048576,"group":"/x/pod-web/web-1"}]}`, at.Format(time.RFC3339Nano))
	if err := os.WriteFile(filepath.Join(dir, File), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	k := w.manager(dir)
	k.settle([]heard{kill("/x/pod-web/web-1", "a", 7, 5)})
	if len(w.told) != 0 || len(k.Reports()) != 1 {
		t.Errorf("told %q, kept %s", w.told, describe(k))
	}
}

// TestLogForOthers has a log that the agent may not read: that is told once, and tried more and more seldom.
func TestLogForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		w, tries := &world{}, 0
		k := w.manager(t.TempDir())
		k.persist(ctx, func() error { tries++; return unix.EPERM }, func(ctx context.Context) { <-ctx.Done() })
		if lines := strings.Count(w.log.String(), "\n"); lines != 1 || tries > 70 {
			t.Errorf("tried %d times in a day, and told %d times", tries, lines)
		}
	})
	if err := (&world{}).manager(t.TempDir()).follow(t.Context(), "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a log that is not there was followed: %v", err)
	}
}

// TestPrintable has a process called what would steer a terminal, or turn what is read there.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"nginx": "nginx", "ngınx": "ngınx", "a\x1b[2Jb": "a?[2Jb", "a\u009bb": "a?b", "a\xffb": "a?b",
		"a\u202eb": "a?b", "a\u00adb": "a?b", "a\ufff9b": "a?b", "a\U000e0041b": "a?b", "a\u2028b": "a?b",
	} {
		if got := printable(in); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

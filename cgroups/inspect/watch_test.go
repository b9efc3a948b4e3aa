package inspect

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/cgroups/oom"
)

// lines collects what is written and lets a test wait for a line.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	select {
	case l.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (l *lines) wait(t *testing.T, words ...string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		for line := range strings.Lines(text) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return
			}
		}
		select {
		case <-l.more:
		case <-late:
			t.Fatalf("no line with %q in\n%s", words, text)
		}
	}
}

// The kernel tells: with an hour between two looks nothing is seen by looking.
func TestWatchIsTold(t *testing.T) {
	live, h, pods := node(t)
	tree := kube.NewTree(h, live.CgroupRoot)
	ctx, cancel := context.WithCancel(t.Context())
	out := &lines{more: make(chan struct{}, 1)}
	ended := make(chan error)
	go func() { ended <- (&app{live: live}).watch(ctx, out, time.Hour) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	// Until a new group is told of, what happens may be before the watching has begun.
	web := tree.PodPath(&pods[1])
	begun := false
	for i := 0; !begun && i < 600; i++ {
		path := fmt.Sprintf("%s/try%d", web, i)
		if err := h.Create(path, nil); err != nil {
			t.Fatal(err)
		}
		select {
		case <-out.more:
			begun = strings.Contains(out.String(), "created")
		case <-time.After(100 * time.Millisecond):
		}
	}
	out.wait(t, "created", "default/web/try")

	memory := func(n int64) *kube.Target {
		p := pods[1].DeepCopy()
		p.Spec.Containers[0].Resources = makeContainer("x", nil, amount("memory", fmt.Sprint(n), "cpu", "100m")).Resources
		return &kube.Target{Resources: kube.ContainerResources(p, &p.Spec.Containers[0], kube.Options{})}
	}
	victim := web + "/victim"
	if err := h.Create(victim, nil); err != nil {
		t.Fatal(err)
	}
	out.wait(t, "created", "default/web/victim")
	// What is changed twice before anybody looks has changed once.
	for _, c := range []struct {
		limit int64
		says  string
	}{{8 << 20, "-> 8Mi"}, {16 << 20, "memory 8Mi -> 16Mi"}} {
		if err := h.Update(victim, memory(c.limit).Resources); err != nil {
			t.Fatal(err)
		}
		out.wait(t, "limit", "default/web/victim", c.says)
	}
	start(t, h, victim, "tail /dev/zero")
	out.wait(t, "oom", "default/web/victim", "for want of memory")

	// The busy container of the pod is stopped most of the time.
	if kernelHas(6, 5) && triggers(h, web) {
		out.wait(t, "pressure", "default/web ", "cpu: tasks waited")
	} else {
		t.Log("the kernel gives no pressure triggers here")
	}
	if err := tree.RemovePod(t.Context(), pods[1].UID, ""); err != nil {
		t.Fatal(err)
	}
	out.wait(t, "removed", "default/web/victim")
	out.wait(t, "removed", "default/web ", "pod")
}

// A kill by the limit of a pod is one line, of the container it was in, and names the pod: by the kernel's log, and
// without it by the counts.
func TestKillIsToldOnce(t *testing.T) {
	ends := filepath.Join(t.TempDir(), "kmsg") // a file of this kind is none that one could wait for
	if err := os.WriteFile(ends, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, log := range map[string]string{"log": "", "counts": "/nonexistent/kmsg", "log that ends": ends} {
		t.Run(name, func(t *testing.T) {
			live, h, pods := node(t)
			if live.KernelLog = log; log == "" {
				l, err := oom.OpenLog(oom.LogPath, true)
				if err != nil {
					t.Skipf("the kernel's log cannot be read here: %v", err)
				}
				l.Close()
			}
			tree := kube.NewTree(h, live.CgroupRoot)
			web := tree.PodPath(&pods[1])
			ctx, cancel := context.WithCancel(t.Context())
			out := &lines{more: make(chan struct{}, 1)}
			ended := make(chan error)
			go func() { ended <- (&app{live: live}).watch(ctx, out, 200*time.Millisecond) }()
			for i := 0; !strings.Contains(out.String(), "created"); i++ { // the watching has begun
				if err := h.Create(fmt.Sprintf("%s/try%d", web, i), nil); err != nil {
					t.Fatal(err)
				}
				select {
				case <-out.more:
				case <-time.After(100 * time.Millisecond):
				}
			}
			if err := h.Create(web+"/victim", nil); err != nil {
				t.Fatal(err)
			}
			out.wait(t, "created", "default/web/victim")
			start(t, h, web+"/victim", "tail /dev/zero")
			if log == "" {
				out.wait(t, "oom", "default/web/victim ", "(tail)", "anonymous", "the pod default/web used ", "of its limit of 128Mi")
			} else {
				out.wait(t, "note", "the kernel's log cannot be read")
				out.wait(t, "oom", "default/web/victim ", "1 process killed", "a group above it")
			}
			// What comes later is told later.
			if err := tree.RemovePod(t.Context(), pods[1].UID, ""); err != nil {
				t.Fatal(err)
			}
			out.wait(t, "removed", "default/web ", "pod")
			if err := h.Create(live.CgroupRoot+"/kubepods/last", nil); err != nil {
				t.Fatal(err)
			}
			out.wait(t, "created", "last")
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if n := strings.Count(out.String(), "  oom  "); n != 1 {
				t.Errorf("%d lines of one kill:\n%s", n, out)
			}
		})
	}
}

// aboutToDie is a watcher of a node where a group of a pod is about to run out of memory.
func aboutToDie(t *testing.T) (w *watcher, h *cgroups.Hierarchy, web, victim string) {
	t.Helper()
	live, h, pods := node(t)
	web = kube.NewTree(h, live.CgroupRoot).PodPath(&pods[1])
	victim = web + "/victim"
	if err := h.Create(victim, nil); err != nil {
		t.Fatal(err)
	}
	m, err := newMonitor(live)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	if _, _, err := m.discover(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	w = &watcher{monitor: m, book: newKillBook()}
	w.begin()
	start(t, h, victim, "tail /dev/zero")
	return w, h, web, victim
}

// A kill that is counted in a group is not counted in the one above when the group goes.
func TestKillsOfAGroupThatGoes(t *testing.T) {
	w, h, web, victim := aboutToDie(t)
	// A kill between the two looks is known of the victim alone, until the next one.
	counted := func() bool {
		got := w.own()
		return got[victim] == 1 && got[web] == 0
	}
	for deadline := time.Now().Add(time.Minute); !counted(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no kill is counted")
		}
	}
	if err := h.Remove(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	if got := w.own(); got[victim] != 1 || got[web] != 0 {
		t.Errorf("%d kills in the group, %d in the one above, want 1 and 0", got[victim], got[web])
	}
}

// TestKillSeenOfTheGroupAlone has a kill counted in a group that then goes, before the group above has seen it: that
// one's own kills are counted as before.
func TestKillSeenOfTheGroupAlone(t *testing.T) {
	w, h, web, victim := aboutToDie(t)
	for deadline := time.Now().Add(time.Minute); w.groups[victim].countKills() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no kill is counted")
		}
	}
	if err := h.Remove(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	_, went, err := w.monitor.discover(t.Context(), time.Now())
	if err != nil || len(went) != 1 {
		t.Fatalf("%d groups went, %v", len(went), err)
	}
	w.left(went[0])
	if got := w.own()[web]; got != w.book.seen[web] {
		t.Errorf("%d kills are the group's own, want %d", got, w.book.seen[web])
	}
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// triggers says whether the kernel lets us be told of pressure.
func triggers(h *cgroups.Hierarchy, group string) bool {
	fd, err := unix.Open(h.Dir("", group)+"/cpu.pressure", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, append([]byte(pressureTrigger), 0))
	return err == nil
}

// A container that is throttled all the time is told of once, then when that changes much, and when it is over.
func TestThrottlingIsToldOnce(t *testing.T) {
	g := &watched{node: &Node{Path: "/kubepods/pod1/c", Kind: kindContainer, Title: "c", snap: &Snapshot{}}}
	w := &watcher{monitor: &monitor{groups: map[string]*watched{g.node.Path: g}}, slowed: map[string]throttle{}}
	var got []string
	for _, step := range [][2]uint64{{10, 0}, {10, 4}, {10, 5}, {10, 4}, {10, 9}, {10, 10}, {0, 0}, {10, 8}, {10, 0}, {10, 0}, {0, 0}, {10, 0}, {10, 2}} {
		g.cur.CPU.Periods += step[0]
		g.cur.CPU.ThrottledPeriods += step[1]
		g.cur.CPU.ThrottledNs += step[1] * 1e6
		for _, e := range w.throttling() {
			got = append(got, e.Text)
		}
	}
	want := "[in 4 of 10 periods (40%), 4ms in 9 of 10 periods (90%), 9ms no longer in 2 of 10 periods (20%), 2ms]"
	if fmt.Sprint(got) != want {
		t.Errorf("told\n%v, want\n%s", got, want)
	}
}

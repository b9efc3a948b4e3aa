package shutdown

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/systemd"
	"github.com/berth-node/berth/systemd/systemdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newPod(name string, prio int32, grace int64) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec:       corev1.PodSpec{Priority: &prio, TerminationGracePeriodSeconds: &grace},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func TestGroups(t *testing.T) {
	done := newPod("done", 0, 30)
	done.Status.Phase = corev1.PodSucceeded
	pods := []*corev1.Pod{newPod("low", -5, 30), newPod("plain", 0, 30), newPod("mid", 999, 30), newPod("high", 1000, 30), newPod("crit", SystemCritical+5, 30), done}
	name := func(gs []group) string {
		var out []string
		for _, g := range gs {
			one := fmt.Sprintf("%d:", g.period.Priority)
			for _, p := range g.pods {
				one += " " + p.Name
			}
			out = append(out, one)
		}
		return strings.Join(out, "; ")
	}
	for want, periods := range map[string][]Period{
		"0: low plain mid high; 2000000000: crit":   Periods(30*time.Second, 10*time.Second),
		"0: low plain mid; 1000: high crit":         {{0, 1}, {1000, 1}},
		"100: low plain; 500: mid; 1000: high crit": {{100, 1}, {500, 1}, {1000, 1}},
		"-10: low plain mid high crit":              {{-10, 1}},
		"0: low plain mid high crit":                {{0, 1}, {SystemCritical + 6, 1}},
	} {
		if got := name(groups(periods, pods)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if p := Periods(30*time.Second, 10*time.Second); p[0].Grace != 20*time.Second || p[1].Grace != 10*time.Second {
		t.Errorf("%v", p)
	}
	for period, want := range map[time.Duration]int64{20 * time.Second: 20, time.Minute: 30} {
		if e := eviction(pods[0], period, "b"); e.GraceSeconds != want || e.Boot != "b" || e.Return != pod.ReturnOpened || e.Conditions[0].Reason != "TerminationByKubelet" {
			t.Errorf("%s: %+v", period, e)
		}
	}
}

// node is pods that end when they are told to, but for those that are stubborn.
type node struct {
	mu       sync.Mutex
	pods     []*corev1.Pod
	told     []string
	stubborn map[string]bool
	closed   []bool
	changed  chan struct{}
}

func (n *node) List() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.pods)
}

func (n *node) Subscribe() func(context.Context, func(watch.EventType, *corev1.Pod) error) error {
	return n.follow
}

func (n *node) follow(ctx context.Context, fn func(watch.EventType, *corev1.Pod) error) error {
	for {
		n.mu.Lock()
		pods, changed := slices.Clone(n.pods), n.changed
		n.mu.Unlock()
		for _, p := range pods {
			if err := fn(watch.Modified, p); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (n *node) Evict(uid types.UID, _ pod.Eviction) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, string(uid))
	for i, p := range n.pods {
		if p.UID == uid && !n.stubborn[p.Name] {
			q := p.DeepCopy()
			q.Status.Phase = corev1.PodFailed
			n.pods[i] = q
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
	return nil
}

func (n *node) Close(closed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = append(n.closed, closed)
}

func (n *node) seen() ([]string, []bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.told), slices.Clone(n.closed)
}

func run(t *testing.T, m *Manager) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// TestShutdown goes through a shutdown, one that is called off, and the next, with a login manager on a real bus.
func TestShutdown(t *testing.T) {
	login := systemdtest.Start(t, 5*time.Second)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", login.Address)
	n := &node{
		pods:     []*corev1.Pod{newPod("crit", SystemCritical, 30), newPod("plain", 0, 30), newPod("stubborn", 0, 30)},
		stubborn: map[string]bool{"stubborn": true}, changed: make(chan struct{}),
	}
	conf := t.TempDir()
	run(t, New(Config{Pods: n, Periods: Periods(11*time.Second, 10*time.Second), ConfDir: conf}))
	lock := <-login.Taken
	if lock.What != "shutdown" || lock.Who != "berth" || lock.Mode != "delay" {
		t.Errorf("%+v", lock)
	}
	// Five seconds are too few: the login manager was told to wait longer.
	if unit := <-login.Reloads; unit != "systemd-logind.service" {
		t.Errorf("%s was told", unit)
	}
	if b, err := os.ReadFile(filepath.Join(conf, systemd.DelayConf)); err != nil || !strings.Contains(string(b), "InhibitDelayMaxSec=11\n") {
		t.Errorf("%s, %v", b, err)
	}
	login.Shutdown(t, true)
	<-lock.Released
	// Critical pods are told when those before them have ended, or have had their time.
	if told, closed := n.seen(); !slices.Equal(told, []string{"plain", "stubborn", "crit"}) || !slices.Equal(closed, []bool{false, true}) {
		t.Errorf("told %v, closed %v", told, closed)
	}
	login.Shutdown(t, false)
	lock = <-login.Taken
	if _, closed := n.seen(); !slices.Equal(closed, []bool{false, true, false}) {
		t.Errorf("closed %v", closed)
	}
	login.Shutdown(t, true)
	<-lock.Released
	if told, _ := n.seen(); len(told) != 4 || told[3] != "stubborn" {
		t.Errorf("told again: %v", told)
	}
}

// TestShutdownGoesOn begins in the middle of a shutdown, when no inhibitor is to be had any more.
func TestShutdownGoesOn(t *testing.T) {
	login := systemdtest.Start(t, time.Minute)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", login.Address)
	changed := make(chan struct{})
	n := &node{pods: []*corev1.Pod{newPod("plain", 0, 30)}, changed: changed}
	login.Shutdown(t, true)
	m := New(Config{Pods: n, Periods: Periods(20*time.Second, 10*time.Second), ConfDir: t.TempDir()})
	m.Ask(t.Context())
	if told, closed := n.seen(); len(told) > 0 || !slices.Equal(closed, []bool{true}) {
		t.Errorf("before pods come: told %v, closed %v", told, closed)
	}
	run(t, m)
	<-changed // it was told
	login.Shutdown(t, false)
	lock := <-login.Taken
	if told, closed := n.seen(); !slices.Equal(told, []string{"plain"}) || !slices.Equal(closed, []bool{true, true, false}) {
		t.Errorf("told %v, closed %v", told, closed)
	}
	login.Shutdown(t, true)
	<-lock.Released
}

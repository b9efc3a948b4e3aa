package pressure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/collect"
	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
)

// world is a node in memory, which notes what is done to it in order.
type world struct {
	mu    sync.Mutex // of done, for those who do several things at once
	pods  []pod.Candidate
	used  map[types.UID]uint64
	taken map[types.UID]pod.Taken
	done  []string
	why   []pod.Eviction
	fail  error // of killing
	// started are the containers that run by the runtime's word, if it has one.
	started []string
	unasked error
	again   int
	dead    []pod.DeadContainer
	ended   int64 // that containers have written that have ended, of either
}

// shed implements Shed of [Config].
func (w *world) shed(_ context.Context, bytes, inodes int64) (freed, freedInodes int64, err error) {
	if w.ended == 0 {
		return 0, 0, nil
	}
	w.done = append(w.done, fmt.Sprint("files for ", bytes, " bytes, ", inodes, " inodes"))
	return w.ended, w.ended, nil
}

func (w *world) Candidates() []pod.Candidate { return w.pods }

func (w *world) Evict(uid types.UID, why pod.Eviction) error {
	w.done, w.why = append(w.done, "record "+string(uid)), append(w.why, why)
	return nil
}

func (w *world) note(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, what)
}

func (w *world) Running(_ context.Context, uid types.UID) ([]string, error) {
	w.note("ask " + string(uid))
	return w.started, w.unasked
}

func (w *world) Quiet(_ context.Context, uid types.UID) error {
	w.done = append(w.done, "quiet "+string(uid))
	return nil
}

func (w *world) Ended(ctx context.Context, uid types.UID) error {
	if uid == "stays" {
		<-ctx.Done()
		return fmt.Errorf("wait for pod %s to end: %w", uid, ctx.Err())
	}
	w.note("ended " + string(uid))
	return nil
}

func (w *world) Taken(context.Context, []*corev1.Pod) (map[types.UID]pod.Taken, error) {
	return w.taken, nil
}

func (w *world) Memory(p *corev1.Pod) (uint64, error) {
	if p.UID == "vanishes" {
		return 0, fmt.Errorf("read memory.stat: %w", unix.ENODEV)
	}
	used, ok := w.used[p.UID]
	if !ok {
		return 0, fs.ErrNotExist
	}
	return used, nil
}

func (w *world) MemoryOfContainers(*corev1.Pod) (map[string]uint64, error) {
	return map[string]uint64{"id-a": 30, "id-b": 10}, nil
}

func (w *world) Tasks(p *corev1.Pod) (uint64, error) {
	if p.UID == "unreadable" {
		return 0, errors.New("cannot be read")
	}
	return w.Memory(p)
}

func (w *world) KillContainers(_ context.Context, of *corev1.Pod, ids []string) error {
	w.note(fmt.Sprint("kill ", of.UID, ids))
	return w.fail
}

func (w *world) WeighDead(context.Context) ([]pod.DeadContainer, error) { return w.dead, nil }

func (w *world) RemoveDead(_ context.Context, list []collect.Container) (gone []collect.Container) {
	for _, c := range list {
		w.done = append(w.done, "remove "+c.ID)
		if c.ID != "stays" {
			gone = append(gone, c)
		}
	}
	return gone
}

func (w *world) Reclaim(_ context.Context, bytes, inodes int64) (freed, freedInodes int64, err error) {
	w.done = append(w.done, fmt.Sprint("images for ", bytes, " bytes, ", inodes, " inodes"))
	return bytes, inodes, nil
}

func (w *world) Node(typ, reason, _ string, _ ...any) { w.done = append(w.done, typ+" "+reason) }

func (w *world) add(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := podtest.New(name, change...)
	p.UID = types.UID(name)
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: p.Spec.Containers[0].Name, ContainerID: "berth://id-" + name,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	w.pods = append(w.pods, pod.Candidate{Pod: p})
	return p
}

func (w *world) node(t *testing.T, cluster bool) *Node {
	t.Helper()
	return New(Config{
		Pods: w, Groups: w, Images: w, Events: w, Again: func() { w.again++ }, Cluster: cluster, Dead: w, Shed: w.shed, RootDir: "/", ImageDir: "/dev",
		File: filepath.Join(t.TempDir(), "evictions.json"), Log: slog.New(slog.DiscardHandler),
	})
}

func TestRanked(t *testing.T) {
	w := &world{used: map[types.UID]uint64{"static": 100, "critical": 5, "ending": 7, "unreadable": 1}}
	w.add("static", func(p *corev1.Pod) {
		p.Annotations = map[string]string{desired.AnnotationSource: string(desired.File)}
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64")}
		p.Spec.TerminationGracePeriodSeconds = new(int64(7))
	})
	w.add("critical", func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) })
	w.add("ending")
	w.pods[2].Evicted = &pod.Eviction{}
	w.add("no group")
	w.add("unreadable")
	w.add("vanishes")
	find := func(pods []rank.Pod, name string) *rank.Pod {
		if at := slices.IndexFunc(pods, func(p rank.Pod) bool { return p.Name == name }); at >= 0 {
			return &pods[at]
		}
		return nil
	}
	alone, err := w.node(t, false).Ranked(t.Context(), signal.MemoryAvailable)
	if err != nil || len(alone) != 4 || find(alone, "no group") != nil || find(alone, "vanishes") != nil {
		t.Fatalf("%+v, %v", alone, err)
	}
	s := find(alone, "static")
	if s.Protected || !s.Known || s.Usage != 100 || s.Request != 64 || s.Grace != 7 || s.QOS != corev1.PodQOSBurstable {
		t.Errorf("%+v", s)
	}
	if len(s.Containers) != 1 || s.Containers[0].Usage != 100 || s.Containers[0].Request != 64 {
		t.Errorf("%+v", s.Containers)
	}
	if !find(alone, "critical").Protected || !find(alone, "ending").Ending || s.Ending {
		t.Errorf("%+v", alone)
	}
	in, err := w.node(t, true).Ranked(t.Context(), signal.AllocatableMemoryAvailable)
	if err != nil || !find(in, "static").Protected {
		t.Errorf("a static pod of a cluster's node: %+v, %v", in, err)
	}
	tasks, err := w.node(t, false).Ranked(t.Context(), signal.PIDAvailable)
	if u := find(tasks, "unreadable"); err != nil || u == nil || u.Known || !find(tasks, "static").Known || find(tasks, "static").Request != 0 {
		t.Errorf("%+v, %v", tasks, err)
	}
}

// Of a pod with several containers each is measured, for what is told of it.
func TestContainers(t *testing.T) {
	w := &world{used: map[types.UID]uint64{"p": 45}}
	p := w.add("p", func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "a"}, {Name: "b"}}
	})
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "a", ContainerID: "berth://id-a"}, {Name: "b", ContainerID: "berth://id-b"}}
	got, err := w.node(t, false).Ranked(t.Context(), signal.MemoryAvailable)
	if err != nil || got[0].Usage != 45 || got[0].Containers[0].Usage != 30 || got[0].Containers[1].Usage != 10 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestRankedByDisk(t *testing.T) {
	w := &world{taken: map[types.UID]pod.Taken{}}
	p := w.add("p")
	c := p.Spec.Containers[0].Name
	taken := pod.Taken{
		Layers: map[string]pod.Space{c: {Bytes: 1, Inodes: 10}}, Logs: map[string]pod.Space{c: {Bytes: 20, Inodes: 200}},
		Volumes: map[string]pod.Space{"v": {Bytes: 300, Inodes: 3000}},
	}
	for _, tt := range []struct {
		of                signal.Signal
		apart             bool
		want, ofContainer int64
	}{
		{signal.NodeFsAvailable, false, 321, 21},
		{signal.ImageFsAvailable, false, 321, 21},
		{signal.NodeFsAvailable, true, 320, 20},
		{signal.ImageFsAvailable, true, 1, 1},
		{signal.ContainerFsAvailable, true, 1, 1},
		{signal.NodeFsInodesFree, false, 3210, 210},
		{signal.ImageFsInodesFree, true, 10, 10},
	} {
		taken.Apart = tt.apart
		w.taken["p"] = taken
		got, err := w.node(t, false).Ranked(t.Context(), tt.of)
		if err != nil || !got[0].Known || got[0].Usage != tt.want || got[0].Containers[0].Usage != tt.ofContainer {
			t.Errorf("%s, apart %v: %+v, %v", tt.of, tt.apart, got, err)
		}
	}
}

// What is deleted in the background is waited for.
func TestAwaitRoom(t *testing.T) {
	dir := t.TempDir()
	has, ok := places{}.room(dir)
	if _, missing := (places{}).room(filepath.Join(dir, "none")); !ok || has <= 0 || missing {
		t.Fatalf("%d, %v, %v", has, ok, missing)
	}
	if inodes, ok := (places{inodes: true}).room(dir); !ok || inodes == has {
		t.Errorf("%d inodes, %v", inodes, ok)
	}
	places{}.await(t.Context(), dir, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	places{}.await(ctx, dir, 1<<62)
}

// What nobody needs goes as long as there is not enough, and only what is on the file system that is full.
func TestReclaim(t *testing.T) {
	if sameDisk("/", "/dev") {
		t.Skip("needs /dev on a file system of its own")
	}
	dead := func(id string, layer, logs int64) pod.DeadContainer {
		return pod.DeadContainer{
			Container: collect.Container{ID: id}, LayerDir: "/dev", LogsDir: "/",
			Layer: pod.Space{Bytes: layer, Inodes: 1}, Logs: pod.Space{Bytes: logs, Inodes: 2},
		}
	}
	for name, tt := range map[string]struct {
		of         signal.Signal
		need, want int64
		done       []string
		fails      bool
		ended      int64
	}{
		"files": {of: signal.ImageFsAvailable, need: 220, want: 230, done: []string{"remove a", "remove c", "files for 20 bytes, 0 inodes"}, ended: 30},
		"files, not all": {
			of: signal.ImageFsInodesFree, need: 90, want: 90, ended: 30, fails: true, done: []string{
				"remove a", "remove b", "remove c", "remove stays", "files for 0 bytes, 87 inodes", "images for 0 bytes, 57 inodes",
			},
		},
		"files elsewhere": {of: signal.NodeFsAvailable, need: 1000, want: 30, ended: 30, fails: true, done: []string{
			"remove a", "remove b", "remove c", "remove stays",
		}},
		"logs":          {of: signal.NodeFsAvailable, need: 15, want: 20, done: []string{"remove a", "remove b"}},
		"logs, not all": {of: signal.NodeFsAvailable, need: 30, want: 30, done: []string{"remove a", "remove b", "remove c"}},
		"not enough":    {of: signal.NodeFsAvailable, need: 1000, want: 30, done: []string{"remove a", "remove b", "remove c", "remove stays"}, fails: true},
		"layers":        {of: signal.ImageFsAvailable, need: 100, want: 100, done: []string{"remove a"}},
		"images too":    {of: signal.ContainerFsAvailable, need: 500, want: 500, done: []string{"remove a", "remove c", "images for 300 bytes, 0 inodes"}},
		"inodes":        {of: signal.ImageFsInodesFree, need: 9, want: 9, done: []string{"remove a", "remove b", "remove c", "remove stays", "images for 0 bytes, 6 inodes"}, fails: true},
		"memory":        {of: signal.MemoryAvailable, need: 9},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{dead: []pod.DeadContainer{dead("a", 100, 10), dead("b", 0, 10), dead("c", 100, 10), dead("stays", 0, 5)}, ended: tt.ended}
			got, err := w.node(t, false).Reclaim(t.Context(), tt.of, tt.need)
			if got != tt.want || (err != nil) != tt.fails || !slices.Equal(w.done, tt.done) {
				t.Errorf("freed %d, %v: %q", got, err, w.done)
			}
		})
	}
	w := &world{}
	if got, err := w.node(t, false).Reclaim(t.Context(), signal.NodeFsAvailable, 10); got != 0 || err != nil || len(w.done) > 0 {
		t.Errorf("images on another file system: %d, %v, %q", got, err, w.done)
	}
}

// What is to be done is written down before anything is, and what is killed need not be waited for where nothing
// else has what it had.
func TestEvict(t *testing.T) {
	tmpfs := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
	}
	for name, tt := range map[string]struct {
		of     signal.Signal
		grace  int64
		change func(*corev1.Pod)
		later  func(*corev1.Pod)
		fail   error
		want   []string

		used    uint64 // when it was killed
		started []string
		unasked error
	}{
		"memory":      {of: signal.MemoryAvailable, want: []string{"record p", "kill p[id-p]"}},
		"with a file": {of: signal.MemoryAvailable, change: tmpfs, want: []string{"record p", "kill p[id-p]", "ended p"}},
		"disk":        {of: signal.NodeFsInodesFree, want: []string{"record p", "kill p[id-p]", "ended p"}},
		"tasks":       {of: signal.PIDAvailable, change: tmpfs, want: []string{"record p", "kill p[id-p]"}},
		"with time":   {of: signal.MemoryAvailable, grace: 5, want: []string{"record p", "quiet p"}},
		"in /dev/shm": {of: signal.MemoryAvailable, used: 64 << 20, want: []string{"record p", "kill p[id-p]", "ended p"}},
		"all but":     {of: signal.MemoryAvailable, used: 1 << 20, want: []string{"record p", "kill p[id-p]"}},
		"starting": {
			of: signal.MemoryAvailable, want: []string{"record p", "ask p", "quiet p"},
			later: func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = corev1.ContainerState{} },
		},
		"just started": {
			of: signal.MemoryAvailable, want: []string{"record p", "ask p", "kill p[id-new id-p]", "quiet p"},
			started: []string{"id-p", "id-new"},
			later: func(p *corev1.Pod) {
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "b"})
			},
		},
		"nobody says": {
			of: signal.MemoryAvailable, want: []string{"record p", "ask p", "quiet p"}, unasked: errors.New("no answer"),
			later: func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = corev1.ContainerState{} },
		},
		"one more starts": {
			of: signal.MemoryAvailable, want: []string{"record p", "ask p", "kill p[id-p]", "quiet p"},
			later: func(p *corev1.Pod) {
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "b"})
			},
		},
		"one has ended": {
			of: signal.MemoryAvailable, want: []string{"record p", "kill p[id-p]"},
			later: func(p *corev1.Pod) {
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
					Name: "b", ContainerID: "berth://id-b", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}},
				})
			},
		},
		"not killed": {of: signal.MemoryAvailable, fail: errors.New("no"), want: []string{"record p", "kill p[id-p]", "quiet p"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{fail: tt.fail, started: tt.started, unasked: tt.unasked}
			if tt.used > 0 {
				w.used = map[types.UID]uint64{"p": tt.used}
			}
			if tt.change == nil {
				tt.change = func(*corev1.Pod) {}
			}
			p := w.add("p", tt.change)
			if tt.later != nil {
				tt.later(p)
			}
			n := w.node(t, false)
			if err := n.Evict(t.Context(), "p", eviction.Order{Signal: tt.of, GraceSeconds: tt.grace, Message: "low", Annotations: map[string]string{"starved_resource": "memory"}}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(w.done, tt.want) {
				t.Errorf("%q, want %q", w.done, tt.want)
			}
			if e := w.why[0]; e.Annotations["starved_resource"] != "memory" || e.Reason != "Evicted" || e.Message != "low" || e.GraceSeconds != tt.grace || e.Return != pod.ReturnDelayed ||
				e.Condition != tt.of.Condition() || len(e.Conditions) != 1 {
				t.Errorf("%+v", e)
			}
			if err := n.Evict(t.Context(), "gone", eviction.Order{Signal: tt.of}); err != nil {
				t.Errorf("one that is gone: %v", err)
			}
		})
	}
}

// Only what was begun as an eviction is seen to its end, at once where it was to be.
func TestSettle(t *testing.T) {
	w := &world{}
	for _, name := range []string{"hard", "soft", "preempted", "runs"} {
		w.add(name)
	}
	w.pods[0].Evicted = &pod.Eviction{Reason: pod.ReasonEvicted}
	w.pods[1].Evicted = &pod.Eviction{Reason: pod.ReasonEvicted, GraceSeconds: 9}
	w.pods[2].Evicted = &pod.Eviction{Reason: "Preempting"}
	if err := w.node(t, false).Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(w.done) // they do not wait for each other
	if want := []string{"ended hard", "ended soft", "kill hard[id-hard]"}; !slices.Equal(w.done, want) {
		t.Errorf("%q, want %q", w.done, want)
	}
}

// A pod that does not end keeps no other from its end, and the node from being watched no longer than for a while.
func TestSettleWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		for _, name := range []string{"stays", "hard"} {
			w.add(name)
			w.pods[len(w.pods)-1].Evicted = &pod.Eviction{Reason: pod.ReasonEvicted}
		}
		began := time.Now()
		err := w.node(t, false).Settle(t.Context())
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > settlePatience {
			t.Errorf("%v, after %s", err, time.Since(began))
		}
		if slices.Sort(w.done); !slices.Equal(w.done, []string{"ended hard", "kill hard[id-hard]", "kill stays[id-stays]"}) {
			t.Errorf("%q", w.done)
		}
	})
}

func TestConditions(t *testing.T) {
	w := &world{}
	n := w.node(t, false)
	set := func(memory, disk bool) {
		w.done = nil
		n.Conditions(eviction.Conditions{
			{Type: corev1.NodeMemoryPressure, Status: memory, Since: time.Now()}, {Type: corev1.NodeDiskPressure, Status: disk},
		})
	}
	set(false, false)
	if len(w.done) > 0 || w.again > 0 || len(n.Holding()) > 0 {
		t.Errorf("nothing has happened: %q", w.done)
	}
	set(true, false)
	if !slices.Equal(w.done, []string{"Normal NodeHasInsufficientMemory"}) || w.again > 0 || !slices.Equal(n.Holding(), []corev1.NodeConditionType{corev1.NodeMemoryPressure}) {
		t.Errorf("%q, %v", w.done, n.Holding())
	}
	set(false, true)
	if !slices.Equal(w.done, []string{"Normal NodeHasSufficientMemory", "Normal NodeHasDiskPressure"}) || w.again != 1 {
		t.Errorf("%q, asked again %d times", w.done, w.again)
	}
	if s := n.shown(); len(s) != 2 || s[0].Status != corev1.ConditionFalse || s[1].Status != corev1.ConditionTrue {
		t.Errorf("%+v", s)
	}
}

// What was decided is there again after a restart, and never more than there is room for.
func TestHistory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "evictions.json")
	log := slog.New(slog.DiscardHandler)
	h := openHistory(file, log)
	ranked := make([]rank.Line, keptRanks+3)
	for i := range keptDecisions + 5 {
		h.add(eviction.Decision{Message: fmt.Sprint(i), Ranked: ranked})
	}
	h.wait.Wait()
	for what, one := range map[string]*history{"kept": h, "read": openHistory(file, log)} {
		all := one.all()
		if len(all) != keptDecisions || all[0].Message != "5" || len(all[0].Ranked) != keptRanks || all[0].Others != 3 {
			t.Errorf("%s: %d, the first %+v", what, len(all), all[0])
		}
	}
	for i := range 3 { // nobody can go, again and again
		h.add(eviction.Decision{Signal: signal.MemoryAvailable, Available: int64(i)})
	}
	h.add(eviction.Decision{Signal: signal.NodeFsAvailable})
	h.wait.Wait()
	if all := h.all(); len(all) != keptDecisions || all[keptDecisions-2].Available != 2 || all[keptDecisions-3].Message != fmt.Sprint(keptDecisions+4) {
		t.Errorf("of nobody: %+v", all[keptDecisions-4:])
	}
	if err := os.WriteFile(file, []byte(strings.Repeat("x", 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	if all := openHistory(file, log).all(); len(all) > 0 {
		t.Errorf("of what cannot be read: %+v", all)
	}
}

// TestHeld: conditions hold over a restart, those of disks over one of the machine too, and a torn record is put aside.
func TestHeld(t *testing.T) {
	file := filepath.Join(t.TempDir(), "conditions.json")
	w := &world{}
	node := func() *Node {
		return New(Config{
			Pods: w, Groups: w, Images: w, Events: w, Again: func() { w.again++ }, Held: file, Transition: time.Minute, Log: slog.New(slog.DiscardHandler),
		})
	}
	now := time.Now()
	held := eviction.Conditions{
		{Type: corev1.NodeMemoryPressure, Status: true, Since: now.Add(-time.Hour), Last: now},
		{Type: corev1.NodeDiskPressure, Status: true, Since: now.Add(-time.Hour), Last: now},
		{Type: corev1.NodePIDPressure, Last: now},
	}
	n := node()
	n.Conditions(held)
	n.Seen(held)
	w.done = nil
	n = node()
	if got := fmt.Sprint(n.Holding()); got != "[MemoryPressure DiskPressure]" {
		t.Errorf("held: %s", got)
	}
	if n.Conditions(held); len(w.done) != 0 {
		t.Errorf("told again: %v", w.done)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		strings.Replace(string(data), pod.BootID(), "another", 1):                                  "[DiskPressure]",
		string(data[:len(data)/2]):                                                                 "[]",
		strings.ReplaceAll(string(data), now.Format("2006-01-02T15:04:05"), "2001-01-02T15:04:05"): "[]",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(node().Holding()); got != want {
			t.Errorf("%s: held %s, want %s", text, got, want)
		}
	}
	if _, err := os.Stat(file + ".bad"); err != nil {
		t.Error(err)
	}
}

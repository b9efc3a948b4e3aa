// Package kills has what becomes of containers in which the kernel kills for want of memory: each kill is an event of
// the pod, and a report that is kept. The kernel's log tells of it with its figures; where that cannot be read, the
// groups' counters and the containers' statuses tell that there was one.
package kills

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/cgroups/oom"
)

// File has the reports, in the root directory.
const File = "kills.json"

// Bounds of what is kept: pods come and go, and their reports are kept until others need the place.
const (
	maxReports   = 300
	maxFull      = 100 // of the latest, with what the kernel had dumped and the figures of groups
	maxPod       = 20
	maxContainer = 3
	maxOthers    = 20 // processes that died with the one that was chosen
)

// Groups are the control groups of the pods.
type Groups interface {
	// Top is the group that those of all pods are below.
	Top() string
	// Owner is whose a group is, "" of a pod's own.
	Owner(group string) (uid types.UID, container string, ok bool)
	// Named is what a group is called by people, of those that are no pod's.
	Named(group string) (string, bool)
	// Containers are the groups of a pod's containers, by ID.
	Containers(*corev1.Pod) (map[string]string, error)
	// Count is how many processes were killed in a group for want of memory.
	Count(group string) (uint64, error)
	// Look reads the figures of groups, of those that there are.
	Look(groups ...string) []oom.Figures
	// Pids are the processes in a group and those below it.
	Pids(group string) ([]int, error)
	// Listen has the kernel tell of kills in any group, where it can; nil: nobody tells. End ends that.
	Listen() (told <-chan struct{}, end func(), err error)
}

// Events is where kills are told.
type Events interface {
	Event(pod *corev1.Pod, typ, reason, format string, args ...any)
}

// Config is what a [Manager] works with. All of it is required.
type Config struct {
	RootDir string
	Groups  Groups
	Pods    func() []*corev1.Pod
	// Watch calls fn with each change of a pod until ctx ends.
	Watch func(ctx context.Context, fn func(watch.EventType, *corev1.Pod) error) error
	// Read is closed when it is known which pods there are.
	Read <-chan struct{}
	// Node is what the node has left.
	Node   func() *oom.NodeFigures
	Events Events
	Log    *slog.Logger
}

// Manager keeps reports of kills. [Manager.Run] is one goroutine that has all of it but the copies that others ask for.
type Manager struct {
	cfg     Config
	file    string // "": nothing can be kept
	boot    string
	seq     uint64 // of the log, up to which all was told
	kept    []*oom.Report
	open    []*open
	changed chan struct{} // a pod has

	mu    sync.Mutex
	shown []oom.Report
}

// open is a report that is not complete.
type open struct {
	*oom.Report
	group string // of the container
	since time.Time
	told  bool
}

// New returns a Manager with what an agent before this one has kept.
func New(c Config) *Manager {
	k := &Manager{cfg: c, file: filepath.Join(c.RootDir, File), boot: oom.BootID(), changed: make(chan struct{}, 1)}
	b, bad, err := record.Load(k.file, oom.Version, oom.Decode)
	switch {
	case err != nil:
		c.Log.Warn("kills of containers are not kept", "error", err)
		k.file = ""
	case bad != nil:
		c.Log.Warn("the kills of containers that were kept are lost", "file", k.file, "error", bad)
	}
	if b == nil {
		return k
	}
	if b.Boot == k.boot {
		k.seq = b.Seq
	}
	for i := range b.Reports {
		r := &b.Reports[i]
		k.kept = append(k.kept, r)
		if r.After == nil && r.ContainerID != "" {
			k.open = append(k.open, &open{Report: r, group: k.containerGroup(r.Kill.Group), since: time.Now(), told: true})
		}
	}
	k.bound()
	k.show()
	return k
}

// Reports are those that are kept, the oldest first.
func (k *Manager) Reports() []oom.Report {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.shown)
}

// show has others see what is kept.
func (k *Manager) show() {
	out := make([]oom.Report, 0, len(k.kept))
	for _, r := range k.kept {
		out = append(out, *r)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shown = out
}

// save has all that is kept outlive the agent.
func (k *Manager) save() {
	k.bound()
	k.show()
	if k.file == "" {
		return
	}
	b := oom.Book{Boot: k.boot, Seq: k.seq, Reports: k.Reports()}
	data, err := b.Encode()
	if err == nil {
		err = record.Replace(k.file, data)
	}
	if err != nil {
		k.cfg.Log.Warn("kills of containers are not kept", "error", err)
	}
}

// bound drops what there is no place for: the oldest of a container, of a pod, and of all.
func (k *Manager) bound() {
	pods, containers := map[string]int{}, map[string]int{}
	var kept []*oom.Report
	for _, r := range slices.Backward(k.kept) {
		id := r.ContainerID
		if id == "" {
			id = r.Kill.Group
		}
		uid := r.UID
		if uid == "" {
			uid = podOf(k.cfg.Groups, r.Kill.Group)
		}
		if pods[uid] >= maxPod || containers[id] >= maxContainer || len(kept) == maxReports {
			continue
		}
		pods[uid]++
		containers[id]++
		if len(kept) >= maxFull {
			r.Kill.Dump, r.Groups, r.Others = nil, nil, nil
		}
		kept = append(kept, r)
	}
	slices.Reverse(kept)
	k.kept = kept
}

// podOf is the UID of the pod that a group is of.
func podOf(groups Groups, group string) string {
	uid, _, _ := groups.Owner(group)
	return string(uid)
}

// Package apiserver brings the statuses of pods to the API server that has the pods, and ends there what has ended
// here. A [Writer] is told what the node says of its pods and what the server is known to have of them; what differs it
// sends, the latest of each pod, and never what is older after what is newer. Static pods are shown there by mirror
// pods, which it makes and removes.
package apiserver

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
)

const (
	defaultTimeout  = 10 * time.Second
	defaultParallel = 16
)

// Client is the API server. Its errors are those of the server, as k8s.io/apimachinery/pkg/api/errors tells them apart.
type Client interface {
	List(
		ctx context.Context, res schema.GroupVersionResource, namespace string, opts metav1.ListOptions, into runtime.Object,
	) error
	Create(
		ctx context.Context, res schema.GroupVersionResource, o interface {
			metav1.Object
			runtime.Object
		}, into runtime.Object, sub ...string,
	) error
	Patch(
		ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, kind types.PatchType, patch []byte,
		into runtime.Object, sub ...string,
	) error
	Delete(ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, opts metav1.DeleteOptions) error
}

// Observer counts. Its methods return at once.
type Observer interface {
	// StatusWrite tells of a call that changes something at the server, by its verb.
	StatusWrite(verb string, err error)
	// StatusWritten tells how long the server did not have what the node says of a pod.
	StatusWritten(took time.Duration)
}

// Config is what a [Writer] works with. Client and Node are required.
type Config struct {
	Client Client
	Node   string // its name
	// NodeUID is that of the Node object, which owns mirror pods; "": not known yet. Nil: there are no mirror pods.
	NodeUID  func() types.UID
	Timeout  time.Duration // of each call; 0: 10 s
	Parallel int           // calls at once; 0: 16
	Observer Observer      // nil: nobody counts
	Log      *slog.Logger
}

// Writer is the sink of statuses that the API server is told of. It is safe for concurrent use, and its methods but Run
// return at once.
type Writer struct {
	cfg  Config
	wake bell
	wait sync.WaitGroup

	mu      sync.Mutex
	pods    map[types.UID]*entry            // of the API server
	mirrors map[types.NamespacedName]*entry // static pods, or what an earlier agent has left of them
	dirty   map[*entry]struct{}             // where something may be to be done
	pace    pace
	listed  bool      // all pods that the server has were told
	settled time.Time // when all static pods were known; zero: they are not yet
	resets  int       // how often the server has gone back
	calm    calm
}

// New returns a Writer that sends nothing before [Writer.Run].
func New(c Config) *Writer {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.Parallel <= 0 {
		c.Parallel = defaultParallel
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	return &Writer{
		cfg: c, wake: make(bell, 1), pods: map[types.UID]*entry{}, mirrors: map[types.NamespacedName]*entry{},
		dirty: map[*entry]struct{}{}, pace: pace{most: c.Parallel, limit: c.Parallel},
	}
}

type nobody struct{}

func (nobody) StatusWrite(string, error)   {}
func (nobody) StatusWritten(time.Duration) {}

// Put takes the latest status of a pod.
func (w *Writer) Put(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.of(pod)
	if e == nil {
		return
	}
	e.put(pod, time.Now())
	w.touch(e)
}

// Delete takes that the node has nothing of a pod any more: one that the API server deletes has its last status sent,
// and is then deleted for good; the mirror of a static pod goes.
func (w *Writer) Delete(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.of(pod)
	if e == nil || e.static && e.want != nil && e.want.UID != pod.UID {
		return // another static pod has the name, and the mirror, by now
	}
	e.gone, e.ending = true, e.ending || pod.DeletionTimestamp != nil
	e.version++ // its last status may be another one
	if e.static {
		e.want = nil
	}
	if e.since.IsZero() {
		e.since = time.Now()
	}
	w.touch(e)
}

// of is the entry of a pod, made when there is none; nil when the server is told nothing of it.
func (w *Writer) of(pod *corev1.Pod) *entry {
	if desired.OriginOf(pod) == desired.API {
		return w.pod(keyOf(pod), pod.UID)
	}
	if w.cfg.NodeUID == nil {
		return nil
	}
	return w.mirror(keyOf(pod))
}

func (w *Writer) pod(key types.NamespacedName, uid types.UID) *entry {
	e := w.pods[uid]
	if e == nil {
		e = &entry{key: key, uid: uid}
		w.pods[uid] = e
	}
	return e
}

func (w *Writer) mirror(key types.NamespacedName) *entry {
	e := w.mirrors[key]
	if e == nil {
		e = &entry{key: key, static: true}
		w.mirrors[key] = e
	}
	return e
}

// Seen takes a pod that the server has. Of several versions of it, which may come in any order, the latest counts. A
// mirror pod is for [Writer.Mirror].
func (w *Writer) Seen(pod *corev1.Pod) {
	if desired.IsMirror(pod) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.pod(keyOf(pod), pod.UID)
	if e.learn(seenOf(pod)) {
		w.touch(e)
	}
	w.answers()
}

// Gone takes that the server has a pod no more.
func (w *Writer) Gone(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.pods[pod.UID]; e != nil {
		e.lose()
		w.touch(e)
	}
	w.answers()
}

// Mirror takes the mirror pod that the server has of a name, nil: none. Those of this node alone are told.
func (w *Writer) Mirror(key types.NamespacedName, pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.mirror(key)
	switch {
	case pod != nil:
		has := seenOf(pod)
		has.told = true
		if !e.learn(has) && e.has != nil && e.has.version == has.version {
			e.has.told = true
		}
	case e.has != nil && !e.has.told:
		// The one that went may be the one before that which was just made here.
		e.doubt = true
	default:
		e.has = nil
	}
	w.touch(e)
	w.answers()
}

// Listed takes that all pods and mirror pods that the server has on this node were told by [Writer.Seen] and
// [Writer.Mirror], and of those that it has no more that they are gone.
func (w *Writer) Listed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listed = true
	w.touchAll()
	w.answers()
}

// Settled takes that all static pods that there are are known: mirror pods of others go, a while after it, since a pod
// that is known has no status before the runtime was asked for it.
func (w *Writer) Settled() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled = time.Now()
	w.touchAll()
}

// Registered takes that the UID of the Node is known, or another one.
func (w *Writer) Registered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.mirrors {
		e.trouble.retry()
		w.touch(e)
	}
}

// Reset takes that the server has gone back to an older state of its own, where versions begin anew: of each pod it is
// asked what it has.
func (w *Writer) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resets++
	for _, e := range w.pods {
		e.reset()
	}
	for _, e := range w.mirrors {
		e.reset()
	}
	w.touchAll()
}

// Pending is of how many pods the server does not have yet what the node says of them.
func (w *Writer) Pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.pods {
		n += e.pending()
	}
	for _, e := range w.mirrors {
		n += e.pending()
	}
	return n
}

// Calm is closed when the server has what there was to say, but for what it has not taken. It may be that at once.
func (w *Writer) Calm() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wake.ring()
	return w.calm.wait()
}

// Mirrors is how many static pods are to have a mirror pod.
func (w *Writer) Mirrors() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.mirrors {
		if e.want != nil {
			n++
		}
	}
	return n
}

func keyOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

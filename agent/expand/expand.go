// Package expand has volumes of CSI drivers be expanded on the node, for claims of an API server: where the driver's
// controller has made a volume larger while pods have it, the node does its part and says so in the claim.
package expand

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/csi/node"
)

// Volumes are those of CSI drivers on the node.
type Volumes interface {
	List() []node.State
	Expand(context.Context, node.Expansion) (int64, error)
}

// Objects are those of the API server that pods of the node refer to.
type Objects interface {
	// Claimed is the PersistentVolume of a name with the claim that it is bound to, and that is bound to it.
	Claimed(volume string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error)
	Secret(namespace, name string) (*corev1.Secret, error)
}

// Client asks the API server.
type Client interface {
	Get(ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, into runtime.Object) error
	Patch(
		ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, kind types.PatchType, patch []byte,
		into runtime.Object, sub ...string,
	) error
}

// Events are told what has come of it.
type Events interface {
	Object(of corev1.ObjectReference, typ, reason, format string, args ...any)
}

// Config is what an [Expander] works with.
type Config struct {
	Volumes Volumes
	Objects Objects
	Client  Client
	Events  Events
	OnNode  func(driver string) bool // whether a driver has a part in it on the node
	Settled func()                   // told when pods may get a volume that have waited for it; nil: nobody is
	Node    string                   // its name
	Log     *slog.Logger

	pace pace // of tests
}

// pace is how soon something is tried again; the zero value is kubelet's.
type pace struct{ first, most time.Duration }

const (
	firstDelay = 500 * time.Millisecond
	mostDelay  = 2*time.Minute + 2*time.Second
	// actWithin bounds what is done for one volume at a time: the driver has two minutes, and so has who is before.
	actWithin = 5 * time.Minute
)

// Expander expands the volumes of a node.
type Expander struct {
	cfg   Config
	bell  chan struct{}
	again atomic.Bool
	lacks atomic.Bool // a Secret is not there
	done  chan outcome

	tries map[id]*try // belongs to the goroutine of Run
}

// id is of a volume.
type id struct{ driver, handle string }

// try is what was done for a volume that pods have.
type try struct {
	busy     bool
	wanted   wanted
	failures int
	until    time.Time // nothing is done before
	refused  int64     // bytes that the driver does not expand it to while it is in use
	final    bool      // the driver has said that it is over, and was no success

	past   []string // versions of the claim that the node itself has changed since
	latest *corev1.PersistentVolumeClaim
}

// wanted is what a try was for: with another one it begins anew.
type wanted struct{ volume, claim int64 }

// New returns an Expander that does nothing before [Expander.Run].
func New(c Config) *Expander {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.pace.first, c.pace.most = cmp.Or(c.pace.first, firstDelay), cmp.Or(c.pace.most, mostDelay)
	return &Expander{cfg: c, bell: make(chan struct{}, 1), done: make(chan outcome), tries: map[id]*try{}}
}

// Look has the Expander look again: a claim, its volume, or who has that is not what it was.
func (x *Expander) Look() {
	select {
	case x.bell <- struct{}{}:
	default:
	}
}

// Again has what failed be tried at once: the API server answers again, or a driver is there.
func (x *Expander) Again() {
	x.again.Store(true)
	x.Look()
}

// SecretCame has what waits for a Secret be tried again.
func (x *Expander) SecretCame() {
	if x.lacks.Swap(false) {
		x.Again()
	}
}

// Run expands until ctx ends and nothing goes on any more.
func (x *Expander) Run(ctx context.Context) {
	var acts sync.WaitGroup
	defer acts.Wait()
	alarm := time.NewTimer(mostDelay)
	defer alarm.Stop()
	for {
		alarm.Reset(x.look(ctx, &acts))
		select {
		case <-ctx.Done():
			return
		case <-x.bell:
		case <-alarm.C:
		case o := <-x.done:
			x.took(o)
		}
	}
}

// look begins what is due, and returns when to look again.
func (x *Expander) look(ctx context.Context, acts *sync.WaitGroup) time.Duration {
	now, next := time.Now(), mostDelay
	again, here := x.again.Swap(false), map[id]bool{}
	for _, s := range x.cfg.Volumes.List() {
		volume, pods := holders(&s)
		c, v, err := x.cfg.Objects.Claimed(volume)
		if len(pods) == 0 || err != nil || v.Spec.CSI == nil || (id{v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle}) != (id{s.Driver, s.Handle}) {
			continue // they are not of the API server
		}
		key := id{s.Driver, s.Handle}
		here[key] = true
		t := x.tries[key]
		if t == nil {
			t = &try{}
			x.tries[key] = t
		}
		if t.busy {
			continue
		}
		c = t.newest(c)
		t.begin(wanted{bytesOf(v.Spec.Capacity), bytesOf(c.Spec.Resources.Requests)}, again)
		has := hasHere(s.Size, c)
		d := judge(c, v, has)
		if d.bytes == 0 || d.bytes == t.refused && has < d.bytes || !d.tell && !x.cfg.OnNode(s.Driver) {
			continue
		}
		if wait := t.until.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		t.busy = true
		one := act{x: x, key: key, claim: c, volume: v, verdict: d, has: has, pods: pods, again: t.final}
		acts.Go(func() { one.run(ctx) })
	}
	for key, t := range x.tries {
		if !here[key] && !t.busy {
			delete(x.tries, key)
		}
	}
	return next
}

// holders are the pods that may write to a volume, and the name of the PersistentVolume that they have it by. For those
// that may only read nothing is expanded.
func holders(s *node.State) (volume string, pods []node.Pod) {
	if s.Ephemeral {
		return "", nil
	}
	for _, u := range s.Uses {
		if u.ReadOnly || !u.Published || volume != "" && u.Name != volume {
			continue
		}
		volume, pods = u.Name, append(pods, u.Pod)
	}
	return volume, pods
}

// newest is the claim as the node itself has changed it, where what is heard of it is from before.
func (t *try) newest(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	if t.latest != nil && t.latest.UID == c.UID && slices.Contains(t.past, c.ResourceVersion) {
		return t.latest
	}
	t.past, t.latest = nil, nil
	return c
}

// begin has a try begin anew where it is for something else, or has been asked to.
func (t *try) begin(w wanted, again bool) {
	switch {
	case w.volume != t.wanted.volume:
		*t = try{wanted: w, past: t.past, latest: t.latest}
	case w != t.wanted || again:
		t.wanted, t.failures, t.until = w, 0, time.Time{}
	}
}

// mostPast is how many changes of a claim are remembered that are not heard of.
const mostPast = 16

// took takes what has come of an act.
func (x *Expander) took(o outcome) {
	t := x.tries[o.key]
	t.busy = false
	if o.latest != nil {
		t.past, t.latest = append(t.past, o.past...), o.latest
		t.past = t.past[max(0, len(t.past)-mostPast):]
	}
	t.final = t.final && o.err != nil || o.final
	if x.cfg.Settled != nil && (o.err == nil || o.final) {
		x.cfg.Settled()
	}
	if o.refused {
		t.refused = t.wanted.volume
	}
	if o.err == nil {
		t.failures, t.until = 0, time.Time{}
		return
	}
	if errors.As(o.err, new(*object.NotFound)) {
		x.lacks.Store(true)
	}
	t.failures++
	t.until = o.until
	if t.until.IsZero() {
		t.until = time.Now().Add(x.cfg.pace.after(t.failures))
	}
}

// after is how long to wait after so many failures: about twice as long each time.
func (p pace) after(failures int) time.Duration {
	d := p.most
	if n := failures - 1; n < 20 {
		d = min(p.first<<n, p.most)
	}
	return d/2 + rand.N(d)
}

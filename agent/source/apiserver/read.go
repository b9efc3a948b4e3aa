package apiserver

import (
	"context"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-node/berth/agent/object"
)

// How often an object is read that the server does not let a node watch: while it is waited for by a pause that grows
// up to the first of these, else by the last. Claims are read more often, as by kubelet, since somebody may ask for
// more: nothing else tells a node that its part in that has come.
const (
	readWaiting = 10 * time.Second
	readClaim   = time.Minute
	readSettled = 5 * time.Minute
	// readAnswer is how long the server has to answer.
	readAnswer = 30 * time.Second
)

// reader reads one object again and again.
type reader struct {
	of    *objects
	e     *entry
	kind  kind
	poked chan struct{}
}

func newReader(of *objects, e *entry, k kind) *reader {
	return &reader{of, e, k, make(chan struct{}, 1)}
}

// poke has the object be read at once.
func (r *reader) poke() {
	select {
	case r.poked <- struct{}{}:
	default:
	}
}

func (r *reader) run(ctx context.Context) {
	grows := r.of.s.cfg.pace.read
	for ctx.Err() == nil {
		o, err := r.read(ctx)
		if ctx.Err() != nil {
			return
		}
		sink := objectSink{r.of, r.e}
		settled := r.settled()
		wait := settled + rand.N(settled/2)
		switch {
		case err != nil || pending(o):
			wait = grows/2 + rand.N(grows)
			grows = min(grows*3/2, readWaiting)
		case growing(o):
			wait = grows/2 + rand.N(grows)
			grows = min(grows*3/2, settled)
		default:
			grows = r.of.s.cfg.pace.read
		}
		switch {
		case apierrors.IsNotFound(err):
			sink.do(func() {
				r.of.gone(r.e, r.e.ref)
				r.of.settle(r.e)
			})
		case err != nil:
			sink.Failed(err)
			if s, ok := apierrors.SuggestsClientDelay(err); ok && s > 0 {
				wait += min(time.Duration(s)*time.Second, readWaiting)
			}
			r.of.s.reach.wait(ctx)
		default:
			sink.Changed(o)
		}
		r.idle(ctx, wait)
	}
}

// settled is how long to wait before what nobody waits for is read again.
func (r *reader) settled() time.Duration {
	if r.e.ref.Kind == object.PersistentVolumeClaim {
		return r.of.s.cfg.pace.claim
	}
	return readSettled
}

// idle waits for the next time to read.
func (r *reader) idle(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-r.poked:
	case <-timer.C:
	}
}

func (r *reader) read(ctx context.Context) (object.Object, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r.of.slots <- struct{}{}:
	}
	defer func() { <-r.of.slots }()
	ctx, cancel := context.WithTimeout(ctx, readAnswer)
	defer cancel()
	o, _ := r.e.ref.Kind.Empty()
	if err := r.of.s.cfg.Client.Get(ctx, r.kind.resource, r.e.ref.NamespacedName, o); err != nil {
		return nil, err
	}
	o.SetManagedFields(nil)
	return o, nil
}

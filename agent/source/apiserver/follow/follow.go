// Package follow keeps up with objects of an API server: a [Follower] hears once what there is, then what changes, and
// goes on over cut connections, compacted histories and servers that were away or were restored from a backup.
package follow

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
)

// Client asks the API server. Its errors are those of the server, as k8s.io/apimachinery/pkg/api/errors tells them
// apart, and any others are those of the way to it.
type Client interface {
	List(
		ctx context.Context, res schema.GroupVersionResource, namespace string, opts metav1.ListOptions, into runtime.Object,
	) error
	Watch(
		ctx context.Context, res schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
	) (watch.Interface, error)
}

// Object is what an API server has. One that could not be read is an error, too, with no more than its metadata.
type Object interface {
	metav1.Object
	runtime.Object
}

// List is several of them.
type List interface {
	metav1.ListInterface
	runtime.Object
}

// Target says which objects are followed.
type Target struct {
	Resource  schema.GroupVersionResource
	Namespace string      // "": all, or none
	Fields    string      // selector; "": all
	List      func() List // an empty list of the kind
	Max       int         // how many are too many for this process
	// Sure has everything asked for again when the server was away. Else only what has happened meanwhile is, which a
	// server that came back with an older history would not tell.
	Sure bool
	// Early has the sink told of what there is as it comes, once, before it is known that it is all, and as the server
	// remembers it: a server that first asks its store whether that is the latest takes 100 ms. What is newer follows,
	// but that there is nothing is not certain then.
	Early bool
}

// Sink is told of the objects, by the goroutine of [Follower.Run] alone. The objects are its own.
type Sink interface {
	// All has all objects there are: what it does not have is gone.
	All(objects []Object)
	// Changed has one that is new or has changed. Before the first All it comes only to who wants that [Target.Early].
	Changed(o Object)
	// Removed has the last of one that is gone.
	Removed(o Object)
	// Failed says why the server does not tell, nil when it does again. It is tried again anyway.
	Failed(err error)
	// Back says that the server has an older history than it had.
	Back(from, to string)
}

// Pace says how long things take. The zero value is for API servers.
type Pace struct {
	First time.Duration // pause before the first try again
	Most  time.Duration // and before later ones at most
	Open  time.Duration // how long the server may say nothing while it is to answer
	Life  time.Duration // of a watch, after which it is made anew, with up to as much again
	Short time.Duration // a watch that ended before is no success
}

func (p *Pace) complete() {
	for _, d := range []struct {
		is *time.Duration
		by time.Duration
	}{
		{&p.First, 200 * time.Millisecond},
		{&p.Most, 10 * time.Second},
		{&p.Open, 30 * time.Second},
		{&p.Life, 5 * time.Minute},
		{&p.Short, 5 * time.Second},
	} {
		if *d.is <= 0 {
			*d.is = d.by
		}
	}
}

// Config is what a Follower is made of.
type Config struct {
	Client Client
	Target Target
	Sink   Sink
	Pace   Pace
	// Ready waits, when a try has failed, until another one makes sense, if it is given: one of many followers finds
	// out for all of them.
	Ready func(ctx context.Context)
}

// Follower keeps up with a [Target].
type Follower struct {
	cfg   Config
	again chan struct{}

	// What follows belongs to the goroutine of Run.
	version string // of the server's history, up to which the sink knows it
	whole   bool   // the sink knows all up to there, so that a watch can go on from it
	listed  bool   // objects are listed, since the server does not stream what there is
	fails   int
	told    bool // that it fails
}

// New returns a Follower that has not begun.
func New(cfg Config) *Follower {
	cfg.Pace.complete()
	return &Follower{cfg: cfg, again: make(chan struct{}, 1)}
}

// Again has everything asked for anew.
func (f *Follower) Again() {
	select {
	case f.again <- struct{}{}:
	default:
	}
}

// errAgain ends a watch because of [Follower.Again].
var errAgain = errors.New("everything is asked for anew")

// errBack ends a watch that tells of what was before it began.
var errBack = errors.New("the server tells of an older history")

// Run follows the target until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		life := f.cfg.Pace.Life + rand.N(f.cfg.Pace.Life)
		err := f.session(ctx, life)
		if ctx.Err() != nil {
			return
		}
		lived := time.Since(began)
		switch {
		case errors.Is(err, errAgain):
			f.whole = false
			continue
		case errors.Is(err, errBack), apierrors.IsResourceExpired(err), apierrors.IsGone(err), isAhead(err):
			f.whole = false
		case unstreamed(err) && !f.listed:
			f.listed = true
			continue
		case err != nil:
			f.fail(err)
		case lived >= life-time.Second:
			f.fails = 0
			continue // it ended in its time
		}
		if lived >= f.cfg.Pace.Short {
			f.fails = 0
		}
		f.pause(ctx, err)
	}
}

// isAhead says whether a server has not come to the version that it is asked to go on from, as after a restore, or a
// bookmark that was wrong.
func isAhead(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// unstreamed says whether a server refuses to begin a watch with what there is.
func unstreamed(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

func (f *Follower) fail(err error) {
	f.told = true
	f.cfg.Sink.Failed(err)
	// What has answered is a server. One that was not to be had may be another one when it is, or have another history:
	// one that was restored from a backup, and has gone on to where it was before, cannot be told from its versions.
	var status apierrors.APIStatus
	if f.cfg.Target.Sure && !errors.As(err, &status) {
		f.whole = false
	}
}

// well notes that the server tells.
func (f *Follower) well() {
	if f.told {
		f.told = false
		f.cfg.Sink.Failed(nil)
	}
}

// maxAsked is how long a server may have a client wait.
const maxAsked = time.Minute

// pause waits before the next try: the longer, the more have failed, and never as long as another node that has lost
// the server at the same time.
func (f *Follower) pause(ctx context.Context, err error) {
	p := &f.cfg.Pace
	most := p.First << min(f.fails, 16)
	if most > p.Most || most <= 0 {
		most = p.Most
	}
	wait := most/2 + rand.N(most/2+1)
	if f.fails == 0 {
		wait = rand.N(most)
	}
	if s, ok := apierrors.SuggestsClientDelay(err); ok && s > 0 {
		wait += min(time.Duration(s)*time.Second, maxAsked)
	}
	f.fails++
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-f.again:
		f.whole = false
	case <-timer.C:
	}
	if err != nil && f.cfg.Ready != nil {
		f.cfg.Ready(ctx)
	}
}

// compare tells which of two versions of a history is older; what cannot be compared is newer.
func compare(a, b string) int {
	if b == "" {
		return 1
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return 1
	}
	return c
}

// errMany says that a server has more objects than any node has to do with.
func (f *Follower) errMany() error {
	return fmt.Errorf("read %s: the server has more than %d of them", f.cfg.Target.Resource.Resource, f.cfg.Target.Max)
}

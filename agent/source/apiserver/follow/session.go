package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// session is one watch, or first a list where the server streams nothing else. It returns why it ended, nil when the
// server has ended it.
func (f *Follower) session(ctx context.Context, life time.Duration) error {
	select {
	case <-f.again:
		f.whole = false
	default:
	}
	if !f.whole && f.listed {
		if err := f.list(ctx); err != nil {
			f.listed = !errors.Is(err, errSilent) && !errors.Is(err, errNoList)
			return err
		}
	}
	return f.watch(ctx, life)
}

// errSilent ends what a server does not answer.
var errSilent = errors.New("the server says nothing")

// errNoList is of a list without a version. Any JSON of somebody on the way is an empty list otherwise, and what is not
// in a list is gone.
var errNoList = errors.New("the list of the server has no version")

// options are those of a watch.
func (f *Follower) options(life time.Duration) metav1.ListOptions {
	seconds := max(int64(life/time.Second), 1)
	opts := metav1.ListOptions{
		FieldSelector: f.cfg.Target.Fields, AllowWatchBookmarks: true, TimeoutSeconds: &seconds, ResourceVersion: f.version,
	}
	if !f.whole {
		// With no version the server tells what there is now, not what it has remembered.
		yes := true
		opts.ResourceVersion = ""
		if f.cfg.Target.Early && f.version == "" {
			opts.ResourceVersion = "0"
		}
		opts.SendInitialEvents, opts.ResourceVersionMatch = &yes, metav1.ResourceVersionMatchNotOlderThan
	}
	return opts
}

func (f *Follower) watch(ctx context.Context, life time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A server that is frozen keeps connections, and says nothing on them.
	silence := time.AfterFunc(f.cfg.Pace.Open, func() { cancel(errSilent) })
	defer silence.Stop()
	w, err := f.cfg.Client.Watch(ctx, f.cfg.Target.Resource, f.cfg.Target.Namespace, f.options(life))
	if err != nil {
		return why(ctx, err)
	}
	defer w.Stop()
	s, most := &stream{f: f, begun: f.version}, 0
	if !f.whole {
		s.first = map[types.NamespacedName]Object{}
	} else {
		f.well()
		silence.Reset(life + f.cfg.Pace.Open)
	}
	for {
		select {
		case <-ctx.Done():
			if s.first != nil && errors.Is(context.Cause(ctx), errSilent) {
				f.listed = !f.listed // it may not know how to say that this was all
			}
			return why(ctx, ctx.Err())
		case <-f.again:
			return errAgain
		case e, open := <-w.ResultChan():
			if !open {
				return why(ctx, nil)
			}
			if err := s.take(e); err != nil {
				return err
			}
			switch {
			case s.first == nil:
				silence.Reset(life + f.cfg.Pace.Open)
			case len(s.first) > most: // what else it says is no word of what there is
				most = len(s.first)
				silence.Reset(f.cfg.Pace.Open)
			}
		}
	}
}

// why is what has ended a call: an error says only that its context did.
func why(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// stream is what one watch has told.
type stream struct {
	f     *Follower
	begun string                          // version that it goes on from
	first map[types.NamespacedName]Object // what there is, until all of it was told
}

func (s *stream) take(e watch.Event) error {
	if e.Type == watch.Error {
		return apierrors.FromObject(e.Object)
	}
	o, ok := e.Object.(Object)
	if !ok {
		return fmt.Errorf("watch %s: the server tells of a %T", s.f.cfg.Target.Resource.Resource, e.Object)
	}
	o.SetManagedFields(nil) // nobody here asks who wrote what, which is half of the object
	if s.first != nil {
		return s.takeFirst(e.Type, o)
	}
	f, version := s.f, o.GetResourceVersion()
	if c := compare(version, f.version); c <= 0 {
		if c < 0 && compare(version, s.begun) < 0 {
			return errBack
		}
		return nil // it was told before
	}
	f.version = version
	switch e.Type {
	case watch.Added, watch.Modified:
		f.cfg.Sink.Changed(o)
	case watch.Deleted:
		f.cfg.Sink.Removed(o)
	}
	return nil
}

// takeFirst takes what there is, which comes in no order, and with what happens meanwhile, until a bookmark ends it.
func (s *stream) takeFirst(kind watch.EventType, o Object) error {
	f, key := s.f, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	switch kind {
	case watch.Added, watch.Modified:
		if _, had := s.first[key]; !had && len(s.first) >= f.cfg.Target.Max {
			return f.errMany()
		}
		s.first[key] = o
		if f.cfg.Target.Early && f.version == "" {
			f.cfg.Sink.Changed(o)
		}
	case watch.Deleted:
		delete(s.first, key)
	case watch.Bookmark:
		if o.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
			return nil
		}
		all := make([]Object, 0, len(s.first))
		for _, o := range s.first {
			all = append(all, o)
		}
		s.first = nil
		s.begun = o.GetResourceVersion()
		f.all(all, s.begun)
	}
	return nil
}

// all has the sink know everything, as of a version.
func (f *Follower) all(objects []Object, version string) {
	if f.version != "" && compare(version, f.version) < 0 {
		f.cfg.Sink.Back(f.version, version)
	}
	f.version, f.whole = version, true
	f.well()
	f.cfg.Sink.All(objects)
}

// page is how many objects are asked for at once.
const page = 500

// spare is how many pages may have less than was asked for.
const spare = 100

// list reads what there is.
func (f *Follower) list(ctx context.Context) error {
	var all []Object
	opts := metav1.ListOptions{FieldSelector: f.cfg.Target.Fields, Limit: page}
	for range f.cfg.Target.Max/page + spare {
		into := f.cfg.Target.List()
		if err := f.listPage(ctx, opts, into, &all); err != nil {
			return err
		}
		if into.GetResourceVersion() == "" {
			return fmt.Errorf("read %s: %w", f.cfg.Target.Resource.Resource, errNoList)
		}
		if opts.Continue = into.GetContinue(); opts.Continue == "" {
			f.all(all, into.GetResourceVersion())
			return nil
		}
	}
	return fmt.Errorf("read %s: the list of the server has no end", f.cfg.Target.Resource.Resource)
}

// Unread are the objects of a list that could not be read, by the error of a client that has read all others; nil: the
// list was not read.
func Unread(err error) []runtime.Object {
	var some interface {
		error
		Unread() []runtime.Object
	}
	if !errors.As(err, &some) {
		return nil
	}
	return some.Unread()
}

func (f *Follower) listPage(ctx context.Context, opts metav1.ListOptions, into List, all *[]Object) error {
	ctx, cancel := context.WithTimeoutCause(ctx, f.cfg.Pace.Open, errSilent)
	defer cancel()
	err := f.cfg.Client.List(ctx, f.cfg.Target.Resource, f.cfg.Target.Namespace, opts, into)
	unread := Unread(err)
	if err != nil && unread == nil {
		return why(ctx, err)
	}
	items, err := meta.ExtractList(into)
	if err != nil {
		return fmt.Errorf("read %s: %w", f.cfg.Target.Resource.Resource, err)
	}
	for _, item := range append(items, unread...) {
		o, ok := item.(Object)
		if !ok {
			return fmt.Errorf("read %s: the server has a %T", f.cfg.Target.Resource.Resource, item)
		}
		if len(*all) >= f.cfg.Target.Max {
			return f.errMany()
		}
		o.SetManagedFields(nil)
		*all = append(*all, o)
	}
	return nil
}

// Package apiserver is the origin of the pods that an API server has bound to this node, and of the objects that they
// refer to. It asks for what the Node authorizer lets a node see, and no more: pods by their node, objects one by one
// while a pod refers to them.
//
// What the server has said is what is desired until it says something else: while it is away nothing changes.
package apiserver

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/source/apiserver/follow"
)

// Client asks the API server, in whose name the node's certificate says.
type Client interface {
	follow.Client
	Get(ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, into runtime.Object) error
}

// Config says whose pods are wanted, and who is told of them. The functions are called by one goroutine, which does
// nothing else meanwhile: they must not wait. What they are given is shared and must not be written to.
type Config struct {
	Client   Client
	NodeName string
	Log      *slog.Logger

	Seen   func(pod *corev1.Pod)                         // each state of a pod, as the server has it
	Gone   func(key types.NamespacedName, uid types.UID) // the server does not have the pod any more
	Listed func()                                        // all that there were at first were seen
	Back   func()                                        // the server has an older history, and versions begin anew
	// Mirror is told of the copies of static pods, which are never desired; nil: there is none any more.
	Mirror func(key types.NamespacedName, pod *corev1.Pod)

	// Here is told that the server answers again, or for the first time.
	Here func()

	Keep Store // keeps what is desired for a start without the server; nil: nothing does

	pace timing // of tests
}

// timing says how long the server is waited for; the zero value is for API servers.
type timing struct {
	follow follow.Pace
	answer time.Duration // how long a pod waits for the next answer about what it refers to
	all    time.Duration // and for all of them at most
	read   time.Duration // pause before an object that is waited for is read again
	claim  time.Duration // and before a claim that is not
	keep   time.Duration // how long a pod waits for its record, on a disk that hangs
	absent time.Duration // how long the server has at the start before what was kept counts
}

func (t *timing) complete() {
	for _, d := range []struct {
		is *time.Duration
		by time.Duration
	}{
		{&t.answer, 3 * time.Second},
		{&t.all, 30 * time.Second},
		{&t.read, 100 * time.Millisecond},
		{&t.claim, readClaim},
		{&t.keep, 3 * time.Second},
		{&t.absent, 3 * time.Second},
	} {
		if *d.is <= 0 {
			*d.is = d.by
		}
	}
}

// Source keeps up with the API server.
type Source struct {
	cfg   Config
	log   *slog.Logger
	mail  chan func() // what followers have heard, done by the goroutine of Run
	reach reach
	wait  sync.WaitGroup

	// What follows belongs to the goroutine of Run.
	ctx     context.Context
	queue   *queue
	pods    map[types.NamespacedName]*podState
	names   map[types.UID]types.NamespacedName // of the pods
	objects *objects
	waiting *waiting
	keeping keeping
	initial map[types.NamespacedName]bool // of the first list, and not in the queue yet
	listed  bool
	once    once
}

// asked is how many questions about objects are open at once.
const asked = 64

// New returns a Source that has not asked for anything.
func New(cfg Config) *Source {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Seen == nil {
		cfg.Seen = func(*corev1.Pod) {}
	}
	if cfg.Gone == nil {
		cfg.Gone = func(types.NamespacedName, types.UID) {}
	}
	if cfg.Listed == nil {
		cfg.Listed = func() {}
	}
	if cfg.Back == nil {
		cfg.Back = func() {}
	}
	if cfg.Here == nil {
		cfg.Here = func() {}
	}
	if cfg.Mirror == nil {
		cfg.Mirror = func(types.NamespacedName, *corev1.Pod) {}
	}
	cfg.pace.complete()
	s := &Source{
		cfg: cfg, log: cfg.Log, mail: make(chan func()), queue: newQueue(), pods: map[types.NamespacedName]*podState{},
		names:   map[types.UID]types.NamespacedName{},
		waiting: newWaiting(cfg.pace), initial: map[types.NamespacedName]bool{}, once: once{cfg.Log, map[string]bool{}},
	}
	s.objects = newObjects(s)
	return s
}

// Run asks the server and sends what changes to out, until ctx ends. It runs once.
func (s *Source) Run(ctx context.Context, out chan<- desired.Update) error {
	if s.cfg.Client == nil || s.cfg.NodeName == "" {
		return errors.New("read pods of the API server: client and node name must be given")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer s.wait.Wait()
	defer cancel()
	s.ctx = ctx
	defer s.waiting.alarm.Stop()
	defer s.keep(ctx)()
	absent, later, limit := s.keeping.alarms()
	pods := follow.New(follow.Config{Client: s.cfg.Client, Target: podsOf(s.cfg.NodeName), Sink: podSink{s}, Pace: s.cfg.pace.follow})
	s.wait.Go(func() { pods.Run(ctx) })
	for {
		var send chan<- desired.Update
		next, ok := s.queue.head()
		if ok {
			send = out
		}
		select {
		case <-ctx.Done():
			return nil
		case do := <-s.mail:
			do()
			s.changed()
		case send <- next:
			s.queue.taken(next)
		case <-s.waiting.alarm.C:
			s.overdue()
		case <-absent:
			s.fromKept()
		case <-later:
			s.save()
		case <-limit:
			s.unkept()
		case <-s.keeping.saved:
			s.wasSaved()
		}
	}
}

// do has the goroutine of Run do something.
func (s *Source) do(what func()) {
	select {
	case <-s.ctx.Done():
	case s.mail <- what:
	}
}

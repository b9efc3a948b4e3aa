// Package metrics serves metrics.k8s.io: what nodes and pods use, as their nodes say when somebody asks.
//
// Nobody is asked beforehand. What is told of processors is the difference of two answers of a node: who asks again and
// again, as an autoscaler does, is told of the time since the last but one, and who asks for the first time waits until
// the node has answered twice.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// fresh is how old an answer may be that is told of without asking again.
	fresh = 10 * time.Second
	// stale is how old an answer may be to be what another one is compared with.
	stale = time.Minute
	// settle is how long after a first answer a node is asked for the second; kubelets measure anew after some
	// seconds only, so that a few are to be asked more than twice.
	settle = 1500 * time.Millisecond
	tries  = 8
	// firstPause and lastPause are for how long a node is not asked that has not answered, at first and at most.
	firstPause = 10 * time.Second
	lastPause  = time.Minute
)

// errAway is of a node that has not answered just now.
var errAway = errors.New("the node has not answered")

// sampler knows the latest answers of nodes.
type sampler struct {
	// ask asks a node.
	ask func(context.Context, *corev1.Node) (*scrape, error)
	now func() time.Time
	// wait waits, or until the context ends.
	wait func(context.Context, time.Duration) error
	log  *slog.Logger

	mu    sync.Mutex
	nodes map[string]*answers
}

// answers are those of one node. Who asks the node holds turn.
type answers struct {
	turn    chan struct{}
	uid     string
	known   pair
	asked   time.Time
	pause   time.Duration
	failing bool
}

func newSampler(address func(*corev1.Node) (*url.URL, error), transport func() http.RoundTripper, log *slog.Logger) *sampler {
	return &sampler{
		ask: func(ctx context.Context, n *corev1.Node) (*scrape, error) {
			base, err := address(n)
			if err != nil {
				return nil, err
			}
			return fetch(ctx, transport(), base, time.Now)
		},
		now: time.Now, log: log, nodes: map[string]*answers{},
		wait: func(ctx context.Context, d time.Duration) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d):
				return nil
			}
		},
	}
}

// of are two answers of a node, the later of which is fresh.
func (s *sampler) of(ctx context.Context, node *corev1.Node) (pair, error) {
	a := s.answersOf(node)
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return pair{}, ctx.Err()
	}
	defer func() { <-a.turn }()
	if a.uid != string(node.UID) { // another machine under the name
		a.uid, a.known, a.failing, a.pause = string(node.UID), pair{}, false, 0
	}
	now := s.now()
	switch {
	case a.failing && now.Sub(a.asked) < a.pause:
		return pair{}, errAway
	case a.known.before != nil && now.Sub(a.asked) < fresh:
		return a.known, nil
	case now.Sub(a.asked) > stale:
		a.known = pair{}
	}
	err := s.renew(ctx, node, a)
	if err != nil && ctx.Err() != nil {
		return pair{}, ctx.Err() // it is not the node's fault
	}
	a.asked = s.now()
	if err != nil {
		if !a.failing {
			s.log.Warn("node does not tell what it uses", "node", node.Name, "error", err)
		}
		a.pause = min(max(firstPause, 2*a.pause), lastPause)
		a.failing, a.known = true, pair{}
		return pair{}, err
	}
	a.failing, a.pause = false, 0
	return a.known, nil
}

// renew asks a node until there are two answers of different times.
func (s *sampler) renew(ctx context.Context, node *corev1.Node, a *answers) error {
	for i := range tries {
		if i > 0 {
			if err := s.wait(ctx, settle); err != nil {
				return err
			}
		}
		got, err := s.ask(ctx, node)
		if err != nil {
			return err
		}
		last := a.known.after
		switch {
		case last == nil:
			a.known.after = got
			continue
		case got.node.at.Before(last.node.at):
			a.known = pair{after: got} // its clock was set
			continue
		case got.node.at.Sub(last.node.at) >= minWindow:
			a.known = pair{last, got}
			return nil
		case a.known.before != nil:
			return nil // what is known is the latest that the node has
		}
	}
	return fmt.Errorf("compare answers of node: it gives the same one again for %s", tries*settle)
}

func (s *sampler) answersOf(node *corev1.Node) *answers {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.nodes[node.Name]
	if a == nil {
		a = &answers{turn: make(chan struct{}, 1), uid: string(node.UID)}
		s.nodes[node.Name] = a
	}
	return a
}

// keep forgets nodes that are not any more.
func (s *sampler) keep(is func(name string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.nodes {
		if !is(name) {
			delete(s.nodes, name)
		}
	}
}

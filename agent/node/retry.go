package node

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// pause is how long is waited after failures in a row: each time about twice as long, and as long as the server asks.
// The waits differ from node to node, so that a server which comes back does not hear of all nodes in one moment.
type pause struct {
	least, most time.Duration
	next        time.Duration
}

// maxAsked bounds how long a server can have a node keep silent.
const maxAsked = 2 * time.Minute

func (p *pause) after(err error) time.Duration {
	p.next = min(max(2*p.next, p.least), p.most)
	wait := p.next/2 + rand.N(p.next/2+1)
	if s, asked := apierrors.SuggestsClientDelay(err); asked && s > 0 {
		least := min(time.Duration(s)*time.Second, maxAsked)
		wait = max(wait, least+rand.N(least/10+1))
	}
	return wait
}

func (p *pause) reset() { p.next = 0 }

// jitter is a time and up to a tenth more.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/10+1) }

// sleep waits, or until somebody rings, where bell is not nil; false: ctx has ended.
func sleep(ctx context.Context, d time.Duration, bell <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-bell:
	case <-t.C:
	}
	return true
}

// trouble tells of what fails once in each way, and once that it does no more.
type trouble struct {
	log  *slog.Logger
	what string
	told []string // the ways in which it has failed since it did
}

func (t *trouble) failed(err error) {
	way := string(apierrors.ReasonForError(err))
	if way == "" {
		way = "unreachable"
	}
	if slices.Contains(t.told, way) {
		return
	}
	t.told = append(t.told, way)
	t.log.Warn("API server does not do what this node asks for, and is asked again", "what", t.what, "error", err)
}

func (t *trouble) done() {
	if len(t.told) > 0 {
		t.log.Info("API server does what this node asks for again", "what", t.what)
	}
	t.told = nil
}

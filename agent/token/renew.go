package token

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// parallel is how many tokens are renewed at a time: after a time without the server, those of all pods are due.
	parallel = 4
	// Between two tries to renew a token.
	pauseMin = 5 * time.Second
	pauseMax = 5 * time.Minute
)

// renewAfter is the age at which a token is renewed: at 80 % of its life, or when it is a day old, and some time before
// that, so that tokens that were made together are not all renewed together.
func renewAfter(life time.Duration) time.Duration {
	age := min(life/5*4, oldest)
	return max(age-rand.N(age/10+1), soonest)
}

// pause is how long after a failure it is tried again: longer each time, and not before the server wants to be asked.
func pause(err error, fails int) time.Duration {
	p := pauseMin
	for ; fails > 1 && p < pauseMax; fails-- {
		p *= 2
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		p = max(p, time.Duration(min(seconds, int(pauseMax/time.Second)))*time.Second)
	}
	p = min(p, pauseMax)
	return p + rand.N(p/2)
}

// Run renews tokens until ctx ends and nothing is asked any more. One timer does for all of them.
func (m *Manager) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			var g errgroup.Group
			g.SetLimit(parallel)
			for _, e := range m.due(time.Now()) {
				g.Go(func() error {
					m.renew(ctx, e)
					return nil
				})
			}
			_ = g.Wait() // it has none
		case <-m.wake:
		}
		timer.Reset(m.untilNext(time.Now()))
	}
}

// due are the tokens that are to be renewed now.
func (m *Manager) due(now time.Time) []*entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*entry
	for _, all := range m.pods {
		for _, e := range all {
			if !e.want.Once && e.asking == nil && e.token.Text != "" && !e.due.After(now) {
				out = append(out, e)
			}
		}
	}
	return out
}

// untilNext is how long there is nothing to do.
func (m *Manager) untilNext(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := maxLife
	for _, all := range m.pods {
		for _, e := range all {
			if !e.want.Once && e.asking == nil && e.token.Text != "" {
				next = min(next, e.due.Sub(now))
			}
		}
	}
	return max(next, 0)
}

// renew has a pod have another token. It keeps the one before when there is none to be had.
func (m *Manager) renew(ctx context.Context, e *entry) {
	m.mu.Lock()
	// Others were renewed before: its pod may have gone by now, or have asked itself.
	wanted := m.pods[e.pod.UID][e.want] == e && e.asking == nil && !e.due.After(time.Now()) && ctx.Err() == nil
	if wanted {
		e.asking = make(chan struct{})
	}
	failed, good := e.fails > 0, e.good
	m.mu.Unlock()
	if !wanted {
		return
	}
	_, err := m.ask(ctx, e)
	log := m.cfg.Log.With("pod", e.pod.Namespace+"/"+e.pod.Name, "uid", string(e.pod.UID), "audience", e.want.Audience)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if failed {
			log.Info("token of the pod's service account is renewed at last")
		}
		m.cfg.Renewed(e.pod.UID)
	case !failed:
		log.Warn("token of the pod's service account is not renewed, and that is tried again", "error", err,
			"good-for", time.Until(good).Round(time.Second))
	default:
		log.Debug("token of the pod's service account is still not renewed", "error", err)
	}
}

package dra

import (
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// claim is a record with the lock of those who ask drivers about it. The record is never changed, but replaced.
type claim struct {
	record
	lock chan struct{}
}

// claims are those of all pods at one time. They are never changed, but replaced.
type claims map[types.UID]*claim

// usedBy are the claims of a pod, in order.
func (all claims) usedBy(pod types.UID) []types.UID {
	var out []types.UID
	for uid, c := range all {
		if c.user(pod) >= 0 {
			out = append(out, uid)
		}
	}
	slices.Sort(out)
	return out
}

// unused are the claims that no pod has any more, in order.
func (all claims) unused() []types.UID {
	var out []types.UID
	for uid, c := range all {
		if len(c.Pods) == 0 {
			out = append(out, uid)
		}
	}
	slices.Sort(out)
	return out
}

// entry is the claim that a pod has for an entry; nil: none.
func (all claims) entry(pod types.UID, name string) *claim {
	for _, c := range all {
		if i := c.user(pod); i >= 0 && slices.Contains(c.Pods[i].As, name) {
			return c
		}
	}
	return nil
}

// unprepared are the drivers that are to prepare something of these claims, with what.
func (all claims) unprepared(uids []types.UID) (names []string, wanted map[string][]record) {
	wanted = map[string][]record{}
	for _, uid := range uids {
		c := all[uid]
		if c == nil {
			continue
		}
		for _, name := range c.drivers() {
			if !c.Drivers[name].Prepared {
				wanted[name] = append(wanted[name], c.record)
			}
		}
	}
	return slices.Sorted(maps.Keys(wanted)), wanted
}

// ledger has the claims, and the file that they are written to before anybody goes by them.
type ledger struct {
	file string
	boot string

	mu     sync.Mutex
	claims claims
}

// now are the claims as they are.
func (l *ledger) now() claims {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.claims
}

// change replaces the claims by what fn makes of a copy of them. When it fails all is as before; false: fn has changed
// nothing.
func (l *ledger) change(fn func(next claims) (bool, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := maps.Clone(l.claims)
	changed, err := fn(next)
	if err != nil || !changed {
		return err
	}
	return l.commit(next)
}

// set replaces a record by what fn makes of it; false when the claim is gone.
func (l *ledger) set(uid types.UID, fn func(*record)) (there bool, err error) {
	err = l.change(func(next claims) (bool, error) {
		c := next[uid]
		if there = c != nil; !there {
			return false, nil
		}
		r := c.clone()
		fn(&r)
		if next[uid] = (&claim{r, c.lock}); len(r.Pods) == 0 && len(r.Drivers) == 0 {
			delete(next, uid)
		}
		return true, nil
	})
	return there, err
}

// enter waits until nobody else asks drivers about a claim, and returns what ends it. There is none when the claim is
// gone.
func (l *ledger) enter(ctx context.Context, uid types.UID) (leave func(), err error) {
	c := l.now()[uid]
	if c == nil {
		return func() {}, nil
	}
	select {
	case c.lock <- struct{}{}:
		return func() { <-c.lock }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

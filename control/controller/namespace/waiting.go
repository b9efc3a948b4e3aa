package namespace

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// wait is what is left of a namespace that others have to finish, or that could not be read. In the next look nothing
// else is looked for: nothing new comes to be in a namespace that ends.
type wait struct {
	kinds   []kind
	n       int
	again   time.Duration
	failed  bool
	unknown bool                                 // not all kinds were known
	empty   map[schema.GroupVersionResource]bool // of those that were, which had nothing left
}

// look empties a namespace. Where others had to finish something at the last look, all is looked for when that is gone;
// where not all kinds were known, those that have come to be.
func (e *emptier) look(ctx context.Context, name string) *rest {
	e.mu.Lock()
	before, waits := e.waiting[name]
	e.mu.Unlock()
	if waits && !before.unknown {
		if left := e.empty(ctx, name, before.kinds, nil); !left.done() {
			return left
		}
	}
	all, err := e.list()
	if err != nil && before.unknown {
		all = slices.DeleteFunc(all, func(k kind) bool { return before.empty[k.resource] })
	}
	left := e.empty(ctx, name, all, err)
	maps.Copy(left.empty, before.empty)
	return left
}

// waits remembers what others have to finish, and says how long until the next look.
func (e *emptier) waits(name string, left *rest) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, waited := e.waiting[name]
	w := wait{
		kinds: left.kinds, n: left.all(), again: lookAgain, failed: left.failed() != nil, unknown: left.discovery != nil, empty: left.empty,
	}
	if w.failed {
		w.again = lookFailed
	}
	if waited && before.n == w.n && before.failed == w.failed {
		w.again = min(2*before.again, lookLast)
	}
	e.waiting[name] = w
	return w.again
}

func (e *emptier) forget(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.waiting, name)
}

// stuck are the namespaces of which something could not be read: another kind is served now, or the same one by another
// server. Discovery tells of that a little later, so that they are looked at soon again.
func (e *emptier) stuck(any) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var names []string
	for name, w := range e.waiting {
		if w.failed {
			w.again = lookFailed
			e.waiting[name] = w
			names = append(names, name)
		}
	}
	return names
}

// space has namespaces of which something could not be read take turns with the others: a server that does not answer
// may have all workers wait for it.
func (e *emptier) space(name string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting[name].failed {
		return "failed"
	}
	return ""
}

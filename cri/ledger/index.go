package ledger

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/berth-node/berth/cri/fault"
)

// Index finds things by their ID, or by a prefix of it that only one has, and by a mark that few have in common.
type Index[T any] struct {
	kind   string         // for errors
	mark   func(T) string // of a thing, which does not change; "" for none
	mu     sync.RWMutex
	byID   map[string]T
	marked map[string]map[string]T // by their mark, then by ID
}

// NewIndex returns an empty index of things of a kind.
func NewIndex[T any](kind string) *Index[T] { return NewMarked(kind, func(T) string { return "" }) }

// NewMarked returns an empty index of things of a kind that have marks.
func NewMarked[T any](kind string, mark func(T) string) *Index[T] {
	return &Index[T]{kind: kind, mark: mark, byID: map[string]T{}, marked: map[string]map[string]T{}}
}

// Put adds v, or replaces what has its ID.
func (x *Index[T]) Put(id string, v T) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(id)
	x.byID[id] = v
	if m := x.mark(v); m != "" {
		if x.marked[m] == nil {
			x.marked[m] = map[string]T{}
		}
		x.marked[m][id] = v
	}
}

// Delete removes what has an ID, if anything has.
func (x *Index[T]) Delete(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(id)
}

// drop removes what has an ID; the caller holds mu.
func (x *Index[T]) drop(id string) {
	v, ok := x.byID[id]
	if !ok {
		return
	}
	delete(x.byID, id)
	m := x.mark(v)
	if delete(x.marked[m], id); len(x.marked[m]) == 0 {
		delete(x.marked, m)
	}
}

// Get finds by an ID, or by a prefix of it that only one has.
func (x *Index[T]) Get(id string) (T, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if v, ok := x.byID[id]; ok {
		return v, nil
	}
	var found []T
	if id != "" && len(id) < 64 {
		for k, v := range x.byID {
			if strings.HasPrefix(k, id) {
				found = append(found, v)
			}
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	var none T
	return none, fmt.Errorf("%s %q: %w", x.kind, id, fault.ErrNotFound)
}

// All returns everything, in the order of cmp.
func (x *Index[T]) All(cmp func(a, b T) int) []T {
	return x.Match(func(T) bool { return true }, cmp)
}

// Match returns what keep says, in the order of cmp. Most who ask look for one of many, and nobody sorts the others:
// each pod asks for its own when an agent starts.
func (x *Index[T]) Match(keep func(T) bool, cmp func(a, b T) int) []T {
	return x.match(func() map[string]T { return x.byID }, keep, cmp)
}

// MatchMarked is Match of those with a mark, of which nobody looks at the others.
func (x *Index[T]) MatchMarked(mark string, keep func(T) bool, cmp func(a, b T) int) []T {
	return x.match(func() map[string]T { return x.marked[mark] }, keep, cmp)
}

func (x *Index[T]) match(among func() map[string]T, keep func(T) bool, cmp func(a, b T) int) []T {
	x.mu.RLock()
	var out []T
	for _, v := range among() {
		if keep(v) {
			out = append(out, v)
		}
	}
	x.mu.RUnlock()
	slices.SortFunc(out, cmp)
	return out
}

// Exact finds by the whole ID only.
func (x *Index[T]) Exact(id string) (T, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	v, ok := x.byID[id]
	return v, ok
}

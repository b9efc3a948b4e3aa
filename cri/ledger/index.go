package ledger

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/berth-node/berth/cri/fault"
)

// Index finds things by their ID, or by a prefix of it that only one has.
type Index[T any] struct {
	kind string // for errors
	mu   sync.RWMutex
	byID map[string]T
}

// NewIndex returns an empty index of things of a kind.
func NewIndex[T any](kind string) *Index[T] { return &Index[T]{kind: kind, byID: map[string]T{}} }

// Put adds v, or replaces what has its ID.
func (x *Index[T]) Put(id string, v T) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byID[id] = v
}

// Delete removes what has an ID, if anything has.
func (x *Index[T]) Delete(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, id)
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
	x.mu.RLock()
	var out []T
	for _, v := range x.byID {
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

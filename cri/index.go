package cri

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// index finds things by their ID, or by a prefix of it that only one has.
type index[T any] struct {
	kind string // for errors
	mu   sync.RWMutex
	byID map[string]T
}

func newIndex[T any](kind string) *index[T] { return &index[T]{kind: kind, byID: map[string]T{}} }

func (x *index[T]) put(id string, v T) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byID[id] = v
}

func (x *index[T]) delete(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, id)
}

func (x *index[T]) get(id string) (T, error) {
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
	return none, fmt.Errorf("%s %q: %w", x.kind, id, errNotFound)
}

// all returns everything, the order being that of less.
func (x *index[T]) all(cmp func(a, b T) int) []T {
	x.mu.RLock()
	out := make([]T, 0, len(x.byID))
	for _, v := range x.byID {
		out = append(out, v)
	}
	x.mu.RUnlock()
	slices.SortFunc(out, cmp)
	return out
}

// exact finds by the whole ID only.
func (x *index[T]) exact(id string) (T, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	v, ok := x.byID[id]
	return v, ok
}

package image

import "sync"

// leases are the content and the layers that something under way needs, by digest and [layerKey]: nobody removes them.
// They are taken before one looks whether the thing is there.
type leases struct {
	mu sync.Mutex
	of map[string]int
}

func newLeases() *leases { return &leases{of: map[string]int{}} }

// layerKey is a layer among leased and kept things; by itself, its chain ID may be the digest of a blob too.
func layerKey(chain string) string { return "layer " + chain }

func layerKeys(chain []string) (keys []string) {
	for _, c := range chain {
		keys = append(keys, layerKey(c))
	}
	return keys
}

// take keeps content and layers from being removed until release is called.
func (l *leases) take(keys ...string) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range keys {
		l.of[k]++
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, k := range keys {
			if l.of[k]--; l.of[k] == 0 {
				delete(l.of, k)
			}
		}
	}
}

// freeze returns what is leased, and has everybody who takes or gives back a lease wait until thaw is called: what is
// not leased can be removed meanwhile.
func (l *leases) freeze() (held map[string]int, thaw func()) {
	l.mu.Lock()
	return l.of, l.mu.Unlock
}

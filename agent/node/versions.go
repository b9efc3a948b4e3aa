package node

import (
	"strconv"
	"sync"
)

// object is one whose resource versions are looked at by one goroutine, in the order in which the server has given
// them.
type object int

const (
	ofNode object = iota
	ofLease
	objects
)

// versions are the newest resource versions that were seen. They are numbers that grow with each write to a store,
// whatever is written: a later answer with a smaller one is of a store whose latest writes are lost.
type versions struct {
	mu     sync.Mutex
	newest [objects]uint64
}

// saw says whether the server has lost something. That is told once: what was seen before says nothing any more.
func (v *versions) saw(of object, version string) (back bool) {
	now, ok := number(version)
	if !ok {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if back = now < v.newest[of]; back {
		v.newest = [objects]uint64{}
	}
	v.newest[of] = now
	return back
}

func number(version string) (uint64, bool) {
	v, err := strconv.ParseUint(version, 10, 64)
	return v, err == nil
}

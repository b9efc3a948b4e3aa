package csitest

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// When is where in a call a fault happens.
type When string

// The places of a fault. Within is after a part of the effect: what a call makes first is made, the rest is not, and is
// not remembered.
const (
	Before When = "before"
	Within When = "within"
	After  When = "after"
)

// Fault is what goes wrong with a call.
type Fault struct {
	RPC    string // such as NodeStageVolume; "": any
	Volume string // or the name of what is to be made; "": any
	When   When   // "": Before
	Times  int    // how many calls; 0: one, -1: all

	Delay time.Duration
	// Gate holds the call until it is closed.
	Gate <-chan struct{} `json:"-"`
	// Deaf calls go on when the caller has given up, as those of most drivers do.
	Deaf bool

	// What happens then. With neither the call goes on.
	Code codes.Code
	Drop bool // the connections of all callers are closed
	Exit bool // the driver ends
}

// Faults are those that are still to happen.
type Faults struct {
	mu   sync.Mutex
	list []Fault
}

// Inject has faults happen, in the order in which they are given.
func (f *Faults) Inject(all ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, all...)
}

// Instead has faults happen, or none, and none of those any more that have not happened. No call gets through in
// between.
func (f *Faults) Instead(all ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = all
}

// next is the fault of a call, or nil.
func (f *Faults) next(rpc, volume string) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, one := range f.list {
		if one.RPC != "" && one.RPC != rpc || one.Volume != "" && one.Volume != volume {
			continue
		}
		switch {
		case one.Times > 1:
			f.list[i].Times--
		case one.Times >= 0:
			f.list = slices.Delete(f.list, i, i+1)
		}
		return &one
	}
	return nil
}

type faultKey struct{}

// within is [Driver.happen] for who knows of no call.
func (d *Driver) within(ctx context.Context) func() error {
	return func() error { return d.happen(ctx, Within) }
}

// happen does what a fault of a call does at a place, and returns what the call is to answer, or nil if it goes on.
func (d *Driver) happen(ctx context.Context, at When) error {
	f, _ := ctx.Value(faultKey{}).(*Fault)
	if f == nil || f.When != at && (f.When != "" || at != Before) {
		return nil
	}
	gaveUp := ctx.Done()
	if f.Deaf {
		gaveUp = nil
	}
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-gaveUp:
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	if f.Gate != nil {
		select {
		case <-f.Gate:
		case <-gaveUp:
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	switch {
	case f.Exit:
		d.exit()
		return status.Error(codes.Unavailable, "the driver has ended")
	case f.Drop:
		d.drop()
		return status.Error(codes.Unavailable, "the connection is closed")
	case f.Code != codes.OK:
		return status.Error(f.Code, "injected "+string(at)+" the effect")
	}
	return nil
}

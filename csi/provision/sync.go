package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/berth-node/berth/csi"
)

// look is how often at least it is written down how long a claim is missing: a time that is lost counts as if it was
// there.
const look = time.Minute

// acts are what is done with one item at a time, by the goroutine that has it.
type acts struct{ m *Manager }

// sync does the next thing for an item, and says after how long to look again though nothing changes; 0: never.
func (a acts) sync(ctx context.Context, i *item) (after time.Duration, err error) {
	a.m.mu.Lock()
	r, want := i.record, i.want
	a.m.mu.Unlock()
	switch why := a.m.blocked[i.name]; {
	case why != "":
		return 0, errors.New(why)
	case r != nil && r.Deleting:
		return 0, a.remove(ctx, i)
	case want != nil && want.Held:
		return 0, a.hold(i)
	case want != nil:
		return a.have(ctx, i, want)
	case r == nil:
		return 0, nil
	case r.Handle == "" && !r.Asked: // there never was anything
		return 0, a.m.forget(i)
	}
	return a.miss(ctx, i)
}

// hold is for what has its claim, and is not to be changed.
func (a acts) hold(i *item) error {
	a.m.mu.Lock()
	i.looked = time.Time{}
	a.m.mu.Unlock()
	if r := i.record; r != nil && r.Missing {
		next := *r
		next.Missing, next.For, next.Kept = false, 0, false
		return a.m.keep(i, &next)
	}
	return nil
}

// have is for what somebody wants.
func (a acts) have(ctx context.Context, i *item, want *Claim) (after time.Duration, err error) {
	a.m.mu.Lock()
	i.looked = time.Time{}
	a.m.mu.Unlock()
	if i.record == nil && want.Waits {
		a.waits(i)
		return 0, nil
	}
	if err := a.accept(i, want); err != nil {
		return 0, err
	}
	if !i.record.made() {
		if err := a.create(ctx, i); err != nil {
			return 0, err
		}
	}
	if i.kind != Volume {
		return a.ready(ctx, i)
	}
	return 0, errors.Join(changes{a}.grow(ctx, i, want), changes{a}.modify(ctx, i, want))
}

// accept writes down what is wanted: all of it before the driver was asked, and later what may change.
func (a acts) accept(i *item, want *Claim) error {
	next := record{Version: 1, Kind: i.kind}
	if i.kind == Group {
		next.Version = groupVersion
	}
	if i.record != nil {
		next = *i.record
	}
	if next.Missing {
		a.m.log.Info("claim is back", "what", string(i.kind), "name", i.name, "claim", want.String())
	}
	next.Missing, next.For, next.Kept = false, 0, false
	if !next.Asked && !next.made() {
		next.Claim = *want
		var err error
		if next.Parameters, next.Secrets, next.FSType, err = split(i.kind, want); err != nil {
			return err
		}
	}
	// A class of another driver says nothing about this volume.
	if of := &next.Claim.Class; of.Name == want.Class.Name && of.Driver == want.Class.Driver {
		of.Retain, of.Expandable = want.Class.Retain, want.Class.Expandable
	}
	if i.record != nil && same(i.record, &next) {
		return nil
	}
	return a.m.keep(i, &next)
}

func same(a, b *record) bool {
	return a.Missing == b.Missing && a.For == b.For && a.Kept == b.Kept && a.Asked == b.Asked && a.Secrets == b.Secrets &&
		sameClaim(&a.Claim, &b.Claim)
}

func sameClaim(a, b *Claim) bool {
	return a.Ref == b.Ref && a.UID == b.UID && a.Source == b.Source && a.Bytes == b.Bytes && a.Limit == b.Limit && a.Block == b.Block &&
		slices.Equal(a.AccessModes, b.AccessModes) && a.Class.Name == b.Class.Name && a.Class.Driver == b.Class.Driver &&
		a.Class.Retain == b.Class.Retain && a.Class.Expandable == b.Class.Expandable &&
		slices.Equal(a.Class.MountOptions, b.Class.MountOptions) && maps.Equal(a.Class.Parameters, b.Class.Parameters) &&
		reflect.DeepEqual(a.Class.Topologies, b.Class.Topologies) && a.Attributes.same(&b.Attributes) && slices.Equal(a.Members, b.Members)
}

// create has the driver make it, by what the record says. A final error leaves a record by which nothing was asked for.
func (a acts) create(ctx context.Context, i *item) error {
	d, err := a.m.cfg.Drivers.Get(i.record.Claim.Class.Driver)
	if err != nil {
		return err
	}
	next := *i.record
	call, err := a.prepare(i.kind)(d, &next)
	if err != nil {
		return err
	}
	if !next.Asked {
		next.Asked = true
		asked := next
		if err := a.m.keep(i, &asked); err != nil {
			return err
		}
	}
	wrong, err := call(ctx)
	if err != nil {
		final := csi.Final(err)
		err = a.room(ctx, d, &next, err)
		if final {
			next.Asked = false
			err = errors.Join(err, a.m.keep(i, &next))
		}
		return err
	}
	next.Asked = false
	if wrong == nil {
		wrong = a.m.elsewhere(i, &next)
	}
	if wrong != nil {
		// It is not used, and not deleted either before its claim is: it may be what was made by this name long ago,
		// with data.
		next.Ready = false
	}
	if err := a.m.keep(i, &next); err != nil {
		return err
	}
	if wrong != nil {
		return fmt.Errorf("CSI driver %s has not made what was asked for: %w", d.Name, wrong)
	}
	a.m.log.Info("made", "what", string(i.kind), "name", i.name, "claim", next.Claim.String(), "driver", d.Name, "handle", next.Handle)
	a.m.madeEvent(i, &next)
	return nil
}

// prepare is what makes the call that makes something of a kind.
func (a acts) prepare(k Kind) func(*csi.Driver, *record) (call, error) {
	switch k {
	case Snapshot:
		return a.createSnapshot
	case Group:
		return groups{a}.create
	}
	return a.createVolume
}

// secrets reads the Secret of a call.
func (a acts) secrets(of Ref) (map[string]string, error) {
	if of == (Ref{}) {
		return nil, nil
	}
	s, err := a.m.cfg.Secret(of.Namespace, of.Name)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", of, err)
	}
	return s, nil
}

// find is what was made for another claim of the same namespace.
func (a acts) find(k Kind, claim Ref) (string, error) {
	s, has := a.m.Get(k, claim)
	if !has && k == Snapshot {
		return groups{a}.find(claim)
	}
	switch {
	case !has:
		return "", fmt.Errorf("%s %s: there is none that was made here", k, claim)
	case !s.Ready || s.Missing:
		return "", fmt.Errorf("%s %s is not ready", k, claim)
	}
	return s.Handle, nil
}

// ready asks again for snapshots that are not ready yet: the same call tells.
func (a acts) ready(ctx context.Context, i *item) (after time.Duration, err error) {
	if i.record.Ready {
		return 0, nil
	}
	next := *i.record
	d, err := a.m.cfg.Drivers.Get(next.Claim.Class.Driver)
	if err != nil {
		return 0, err
	}
	call, err := a.prepare(i.kind)(d, &next)
	if err != nil {
		return 0, err
	}
	if wrong, err := call(ctx); err != nil || wrong != nil {
		return 0, errors.Join(wrong, err)
	}
	if !next.Ready {
		return 5 * time.Second, nil
	}
	if err := a.m.keep(i, &next); err != nil {
		return 0, err
	}
	a.m.readyEvent(i)
	return 0, nil
}

package provision

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrUnknown is the error of a claim for which nothing was made.
var ErrUnknown = errors.New("there is none")

// Keep retains what was made for a claim that is gone, until the claim is put back or [Manager.Delete] is called. The
// claim's name may also be that of what was made ([State.Name]).
func (m *Manager) Keep(k Kind, claim Ref) error { return m.decide(k, claim, true) }

// Delete deletes what was made for a claim that is gone, without waiting for the grace. The claim's name may also be
// that of what was made.
func (m *Manager) Delete(k Kind, claim Ref) error { return m.decide(k, claim, false) }

func (m *Manager) decide(k Kind, claim Ref, keep bool) error {
	i, err := acts{m}.take(k, claim)
	if err != nil {
		return fmt.Errorf("%s %s: %w", k, claim, err)
	}
	r := *i.record
	r.Kept = keep
	if !keep {
		r.For, r.Missing = m.cfg.Grace, true
		r.Claim.Class.Retain = false
	}
	err = m.keep(i, &r)
	m.mu.Lock()
	defer m.mu.Unlock()
	i.give()
	i.soon()
	m.rouse()
	return err
}

// busyLimit bounds how long somebody waits for what is being done with an item, as after the decision before. A driver
// may take longer than one waits for an answer.
const busyLimit = 10 * time.Second

// take takes the item whose claim is gone, so that nobody else does anything with it, until it is given back.
func (a acts) take(k Kind, claim Ref) (*item, error) {
	limit := time.NewTimer(busyLimit)
	defer limit.Stop()
	for {
		a.m.mu.Lock()
		i, err := a.m.missing(k, claim)
		var free <-chan struct{}
		if err == nil {
			free = i.take()
		}
		a.m.mu.Unlock()
		if free == nil {
			return i, err
		}
		select {
		case <-free:
		case <-limit.C:
			return nil, errors.New("something is being done with it: try again")
		}
	}
}

// take takes an item, unless somebody has it: then what it returns is closed when it is given back. The lock is held.
func (i *item) take() <-chan struct{} {
	if !i.busy {
		i.busy = true
		return nil
	}
	if i.free == nil {
		i.free = make(chan struct{})
	}
	return i.free
}

// give gives an item back that was taken; the lock is held.
func (i *item) give() {
	i.busy = false
	if i.free != nil {
		close(i.free)
		i.free = nil
	}
}

// missing is the item whose claim is gone; the lock is held.
func (m *Manager) missing(k Kind, claim Ref) (*item, error) {
	if !m.told {
		return nil, errors.New("what the manifests ask for is not known yet: try again")
	}
	all := m.of(k, claim)
	if i := m.items[claim.Name]; i != nil && i.kind == k && !slices.Contains(all, i) {
		all = append(all, i)
	}
	var found []*item
	var names []string
	wanted := false
	for _, i := range all {
		switch {
		case i.want != nil:
			wanted = true
		case i.record != nil:
			found, names = append(found, i), append(names, i.name)
		}
	}
	switch {
	case wanted && len(found) > 0:
		return nil, fmt.Errorf("a manifest has it; what was made for it before is called %s", strings.Join(names, ", "))
	case wanted:
		return nil, errors.New("a manifest has it")
	case len(found) == 0:
		return nil, ErrUnknown
	case len(found) > 1:
		return nil, fmt.Errorf("several were made for it: say which of %s", strings.Join(names, ", "))
	case found[0].record.Deleting:
		return nil, errors.New("it is being deleted")
	}
	return found[0], nil
}

// of are the items of a claim, in the order in which they count: what is wanted, then what is not being deleted, then
// by name. There is more than one where the claim had another UID before. The lock is held.
func (m *Manager) of(k Kind, claim Ref) []*item {
	var out []*item
	for _, i := range m.items {
		if i.kind == k && i.ref() == claim {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b *item) int { return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.name, b.name)) })
	return out
}

func (i *item) rank() int {
	switch {
	case i.want != nil:
		return 0
	case i.record != nil && !i.record.Deleting:
		return 1
	}
	return 2
}

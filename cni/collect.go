package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Collect removes what sandboxes that are gone have left: namespaces, veth pairs, addresses, host ports, attachments to
// a foreign network. Sandboxes in live stay, and so do those that this process has made and not removed, since the
// caller's list may be older than they are.
func (n *Network) Collect(ctx context.Context, live []string) error {
	keep := map[string]struct{}{}
	for _, id := range live {
		keep[id] = struct{}{}
	}
	return n.collect(ctx, func(id string) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		_, kept := keep[id]
		_, mine := n.mine[id]
		return kept || mine
	})
}

func (n *Network) collect(ctx context.Context, live func(id string) bool) error {
	var errs []error
	live, err := n.vacateDead(ctx, live)
	errs = append(errs, err)
	// Foreign plugins first, since they may want the namespace.
	ids, err := n.foreign.records.ids()
	errs = append(errs, err)
	for _, id := range ids {
		if live(id) {
			continue
		}
		path, _ := n.pins.path(id)
		if err := n.Teardown(ctx, Pod{ID: id, NetNS: path}); err != nil {
			errs = append(errs, err)
		}
	}
	// Then namespaces, of which the kernel takes many down together, with their veth pairs.
	ids, err = n.pins.list()
	errs = append(errs, err)
	for _, id := range ids {
		if !live(id) {
			errs = append(errs, n.pins.remove(id))
		}
	}
	errs = append(errs, n.own.collect(live))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("collect networks: %w", err)
	}
	return nil
}

// vacateDead kills who is left in the namespaces of sandboxes that are gone. One that is not empty afterwards is live
// like those that were told to be: what it has cannot be another's yet.
func (n *Network) vacateDead(ctx context.Context, live func(id string) bool) (func(id string) bool, error) {
	ids, err := n.pins.list()
	errs := []error{err}
	held := map[string]struct{}{}
	for _, id := range ids {
		if live(id) {
			continue
		}
		if err := n.Vacate(ctx, id); err != nil {
			held[id] = struct{}{}
			errs = append(errs, err)
		}
	}
	return func(id string) bool {
		_, is := held[id]
		return is || live(id)
	}, errors.Join(errs...)
}

// Purge removes everything: all that sandboxes have, the bridge, the rules, the directories.
func (n *Network) Purge(ctx context.Context) error {
	n.unwatch()
	err := n.collect(ctx, func(string) bool { return false })
	errs := []error{
		err, n.own.purge(), dropMount(n.conf.NetNSDir), n.own.forget(), dropMount(n.conf.StateDir),
		os.RemoveAll(n.foreign.records.lasting), os.RemoveAll(n.foreign.records.volatile),
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("purge network: %w", err)
	}
	return nil
}

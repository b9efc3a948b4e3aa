package sandbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/oci"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/step"
)

// A sandbox's network namespace is pinned by the network. One with ids of its own has a user namespace too, pinned in
// the sandbox's directory, which then owns all its namespaces: by that the pod's root has power over them and over
// nothing else.

func (b *Builder) pinNamespaces(sb *Sandbox) step.Act {
	if sb.IDs != nil {
		return func(context.Context) error { return b.pinUserNS(sb) }
	}
	if sb.HostNetwork() {
		return nil
	}
	return func(context.Context) error { return sb.setNetNS(b.host.Net.NewNamespace(sb.ID)) }
}

func (b *Builder) unpinNamespaces(sb *Sandbox) step.Act {
	if sb.IDs == nil && sb.HostNetwork() {
		return nil
	}
	return func(ctx context.Context) error {
		var errs []error
		if !sb.HostNetwork() {
			if err := b.vacate(ctx, sb); err != nil {
				return err
			}
			errs = append(errs, b.host.Net.Teardown(ctx, sb.network()), b.host.Net.RemoveNamespace(sb.ID))
		}
		if sb.IDs != nil {
			errs = append(errs, b.host.Mounts.Unmount(b.host.Paths.Sandbox(sb.ID).UserNS()))
		}
		return errors.Join(errs...)
	}
}

// vacate sees to it that nobody is left in the sandbox's network namespace. A keeper that has ended in order says so.
func (b *Builder) vacate(ctx context.Context, sb *Sandbox) error {
	sb.mu.RLock()
	quiet := sb.quiet
	sb.mu.RUnlock()
	if quiet {
		return nil
	}
	return b.host.Net.Vacate(ctx, sb.ID)
}

func (b *Builder) pinUserNS(sb *Sandbox) (err error) {
	if err := b.host.UserNamespaces(); err != nil {
		return fmt.Errorf("%w: %w", fault.ErrPrecondition, err)
	}
	ns, err := b.host.Keepers.NewUserNS(host.SysMapping(sb.IDs.UIDs), host.SysMapping(sb.IDs.GIDs), !sb.HostNetwork())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	if err := b.host.Mounts.Pin(ns.Path("user"), b.host.Paths.Sandbox(sb.ID).UserNS()); err != nil {
		return fmt.Errorf("pin user namespace: %w", err)
	}
	if sb.HostNetwork() {
		return nil
	}
	return sb.setNetNS(b.host.Net.AdoptNamespace(sb.ID, ns.Path("net")))
}

func (sb *Sandbox) setNetNS(path string, err error) error {
	if err != nil {
		return err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.rec.NetNS = path
	return nil
}

// UserNS is the path of the sandbox's user namespace, "" for the host's.
func (sb *Sandbox) UserNS(l host.Layout) string {
	if sb.IDs == nil {
		return ""
	}
	return l.Sandbox(sb.ID).UserNS()
}

// idsOf are those of a configuration that was checked.
func idsOf(sb *Sandbox) *oci.IDs {
	ids, _ := oci.UserNamespace(sb.NamespaceOptions().GetUsernsOptions())
	return ids
}

package provision

import (
	"context"
	"errors"
	"fmt"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/node"
)

// grow has a volume be as large as its claim wants it.
func (c changes) grow(ctx context.Context, i *item, want *Claim) error {
	r := i.record
	if max(want.Bytes, r.Expand) > r.Bytes {
		if err := c.growHere(ctx, i, max(want.Bytes, r.Expand)); err != nil {
			return err
		}
	}
	if r = i.record; r.NodeExpand == 0 {
		return nil
	}
	secrets, err := c.acts.secrets(r.Secrets.NodeExpand)
	if err != nil {
		return err
	}
	e := node.Expansion{Driver: r.Claim.Class.Driver, Handle: r.Handle, Name: i.name, Bytes: r.NodeExpand, Secrets: secrets}
	size, err := c.acts.m.cfg.Node.Expand(ctx, e)
	if err != nil {
		return err
	}
	next := *r
	next.NodeExpand = 0
	if err := c.acts.m.keep(i, &next); err != nil {
		return err
	}
	if size == 0 {
		c.acts.m.tell(i, Event{Reason: "FileSystemResizeRequired", Message: "the next pod that has it has it expanded on the node"})
		return nil
	}
	c.acts.m.tell(i, Event{Reason: "FileSystemResizeSuccessful", Message: fmt.Sprintf("expanded on the node to %d bytes", size)})
	return nil
}

// growHere has the controller expand a volume, where it does that, and writes down what the node has to do.
func (c changes) growHere(ctx context.Context, i *item, bytes int64) error {
	next := *i.record
	d, err := c.acts.m.cfg.Drivers.Get(next.Claim.Class.Driver)
	if err != nil {
		return err
	}
	controller := d.Controller(spec.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	here := d.Node(spec.NodeServiceCapability_RPC_EXPAND_VOLUME)
	switch {
	case !next.Claim.Class.Expandable:
		return fmt.Errorf("it has %d bytes, and the claim asks for %d: its class %s does not allow that (allowVolumeExpansion)",
			next.Bytes, bytes, next.Claim.Class.Name)
	case !controller && !here:
		return fmt.Errorf("it has %d bytes, and the claim asks for %d: CSI driver %s expands no volumes", next.Bytes, bytes, d.Name)
	case !controller:
		next.Bytes, next.NodeExpand = bytes, bytes
		return c.acts.m.keep(i, &next)
	}
	secrets, err := c.acts.secrets(next.Secrets.ControllerExpand)
	if err != nil {
		return err
	}
	if next.Expand != bytes {
		next.Expand = bytes
		asked := next
		if err := c.acts.m.keep(i, &asked); err != nil {
			return err
		}
	}
	answer, err := d.Client().Controller().ControllerExpandVolume(ctx, &spec.ControllerExpandVolumeRequest{
		VolumeId: next.Handle, CapacityRange: &spec.CapacityRange{RequiredBytes: bytes}, Secrets: secrets,
		VolumeCapability: capabilities(&next.Claim, d)[0],
	})
	switch {
	case csi.Final(err):
		next.Expand = 0
		return errors.Join(err, c.acts.m.keep(i, &next))
	case err != nil:
		return err
	case answer.GetCapacityBytes() < bytes:
		return fmt.Errorf("CSI driver %s has expanded it to %d bytes, and not to %d", d.Name, answer.GetCapacityBytes(), bytes)
	}
	next.Expand, next.Bytes = 0, answer.GetCapacityBytes()
	if answer.GetNodeExpansionRequired() {
		next.NodeExpand = next.Bytes
	}
	if err := c.acts.m.keep(i, &next); err != nil {
		return err
	}
	c.acts.m.tell(i, Event{Reason: "VolumeResizeSuccessful", Message: fmt.Sprintf("resize volume %s to %d bytes succeeded", i.name, next.Bytes)})
	return nil
}

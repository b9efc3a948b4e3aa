package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/berth-node/berth/csi"
)

// changed is by which attributes a volume was changed.
type changed struct {
	Now Attributes `json:"now,omitzero"`
	// Asked are those that the driver was asked for, which it may have changed the volume by, or may still.
	Asked *Attributes `json:"asked,omitempty"`
}

func (a *Attributes) same(b *Attributes) bool {
	return a.Class == b.Class && a.Driver == b.Driver && maps.Equal(a.Parameters, b.Parameters)
}

// fit says why a driver changes no volume by these attributes.
func (a *Attributes) fit(d *csi.Driver) error {
	switch {
	case a.Driver == "":
		return fmt.Errorf("VolumeAttributesClass %s: there is none", a.Class)
	case a.Driver != d.Name:
		return fmt.Errorf("VolumeAttributesClass %s is for CSI driver %s, and the volume is of %s", a.Class, csi.Text(a.Driver), d.Name)
	case !d.Controller(spec.ControllerServiceCapability_RPC_MODIFY_VOLUME):
		return fmt.Errorf("VolumeAttributesClass %s: CSI driver %s changes no volumes", a.Class, d.Name)
	}
	return nil
}

// modifyError is of a volume that is not changed as its claim wants it.
type modifyError struct{ err error }

func (e *modifyError) Error() string { return e.err.Error() }
func (e *modifyError) Unwrap() error { return e.err }

// changes are what is done with one volume that is there.
type changes struct{ acts acts }

// modify has a volume be changed by the attributes that its claim wants. Without any it stays as it is. A change whose
// end is not known is finished first, since it may set what the next one does not.
func (c changes) modify(ctx context.Context, i *item, want *Claim) error {
	for {
		r := i.record
		goal, again := want.Attributes, r.Changed.Asked != nil
		if again {
			goal = *r.Changed.Asked
		}
		if goal.Class == "" || !again && goal.same(&r.Changed.Now) {
			return nil
		}
		if err := c.modifyTo(ctx, i, goal, again); err != nil {
			return &modifyError{err}
		}
	}
}

func (c changes) modifyTo(ctx context.Context, i *item, goal Attributes, again bool) error {
	next := *i.record
	d, err := c.acts.m.cfg.Drivers.Get(next.Claim.Class.Driver)
	if err != nil {
		return err
	}
	if err := goal.fit(d); err != nil {
		return err
	}
	secrets, err := c.acts.secrets(next.Secrets.ControllerModify)
	if err != nil {
		return err
	}
	if !again {
		next.Changed.Asked = &goal
		asked := next
		if err := c.acts.m.keep(i, &asked); err != nil {
			return err
		}
	}
	if !again && !c.failed(i) { // of what is tried again it is told once
		c.acts.m.tell(i, Event{Reason: "VolumeModify", Message: fmt.Sprintf("volume %s is being changed by VolumeAttributesClass %s", i.name, goal.Class)})
	}
	_, err = d.Client().Controller().ControllerModifyVolume(ctx, &spec.ControllerModifyVolumeRequest{
		VolumeId: next.Handle, Secrets: secrets, MutableParameters: goal.Parameters,
	})
	switch {
	case csi.Final(err):
		next.Changed.Asked = nil
		return errors.Join(err, c.acts.m.keep(i, &next))
	case err != nil:
		return err
	}
	next.Changed = changed{Now: goal}
	if err := c.acts.m.keep(i, &next); err != nil {
		return err
	}
	c.acts.m.tell(i, Event{Reason: "VolumeModifySuccessful", Message: fmt.Sprintf("volume %s was changed by VolumeAttributesClass %s", i.name, goal.Class)})
	return nil
}

// failed says whether what was tried last of an item failed.
func (c changes) failed(i *item) bool {
	c.acts.m.mu.Lock()
	defer c.acts.m.mu.Unlock()
	return i.err != nil
}

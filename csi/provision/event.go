package provision

import (
	"errors"
	"fmt"
	"strings"

	"github.com/berth-node/berth/csi"
)

// Event is something that has happened to a volume or a snapshot, in the words of Kubernetes' controllers.
type Event struct {
	Kind  Kind
	Claim Ref
	UID   string // of the claim
	// Made says that it is about what was made, by Name, and not about the claim.
	Made    bool
	Name    string
	Warning bool
	Reason  string
	Message string
}

// tell hands on an event of an item.
func (m *Manager) tell(i *item, e Event) {
	m.mu.Lock()
	e.Kind, e.Claim, e.UID, e.Name = i.kind, i.ref(), i.uid(), i.name
	m.mu.Unlock()
	m.cfg.Event(e)
}

func (i *item) uid() string {
	switch {
	case i.record != nil:
		return i.record.Claim.UID
	case i.want != nil:
		return i.want.UID
	}
	return ""
}

// failed is the event of an item of which something does not succeed; the lock is held.
func (m *Manager) failed(i *item, err error) Event {
	e := Event{Kind: i.kind, Claim: i.ref(), UID: i.uid(), Name: i.name, Warning: !errors.Is(err, errInUse), Message: err.Error()}
	is := func(ofVolume, ofSnapshot string) string {
		switch i.kind {
		case Snapshot:
			return ofSnapshot
		case Group:
			return ofGroup(ofSnapshot)
		}
		return ofVolume
	}
	switch r, class := i.record, i.of(); {
	case r != nil && (i.want == nil || r.Deleting):
		e.Made, e.Reason = true, is("VolumeFailedDelete", "SnapshotDeleteError")
	case errors.Is(err, csi.ErrNotRegistered) && (r == nil || !r.made()):
		e.Warning, e.Reason = false, is("ExternalProvisioning", "CreatingSnapshot")
		e.Message = fmt.Sprintf("waiting for CSI driver %s, which is to make it, to be registered", class.Driver)
	case r == nil || !r.made():
		e.Reason = is("ProvisioningFailed", "SnapshotCreationFailed")
		e.Message = fmt.Sprintf("CSI driver %s, class %q: %v", class.Driver, class.Name, err)
	default:
		e.Reason = is("VolumeResizeFailed", "SnapshotCreationFailed")
		if _, modify := errors.AsType[*modifyError](err); modify && i.kind == Volume {
			e.Reason = "VolumeModifyFailed"
		}
	}
	return e
}

// ofGroup is the reason of a group snapshot's event that a snapshot has: CreatingGroupSnapshot, GroupSnapshotReady.
func ofGroup(reason string) string { return strings.Replace(reason, "Snapshot", "GroupSnapshot", 1) }

// of is the class that counts for an item.
func (i *item) of() Class {
	switch {
	case i.record != nil && (i.want == nil || i.record.Asked || i.record.made()):
		return i.record.Claim.Class
	case i.want != nil:
		return i.want.Class
	}
	return Class{}
}

// madeEvent tells that the driver has made what was asked for.
func (m *Manager) madeEvent(i *item, r *record) {
	e := Event{Reason: "ProvisioningSucceeded", Message: "successfully provisioned volume " + i.name}
	switch by := fmt.Sprintf("%s was successfully created by CSI driver %s", r.Claim.String(), r.Claim.Class.Driver); i.kind {
	case Snapshot:
		e = Event{Reason: "SnapshotCreated", Message: "snapshot " + by}
	case Group:
		e = Event{Reason: ofGroup("SnapshotCreated"), Message: "group snapshot " + by}
	}
	m.tell(i, e)
	if i.kind != Volume && r.Ready {
		m.readyEvent(i)
	}
}

func (m *Manager) readyEvent(i *item) {
	e := Event{Reason: "SnapshotReady", Message: "snapshot " + i.record.Claim.String() + " is ready to use"}
	if i.kind == Group {
		e.Reason, e.Message = ofGroup(e.Reason), "group "+e.Message
	}
	m.tell(i, e)
}

// late tells that a claim was put back too late: its driver has deleted what it had.
func (a acts) late(i *item) {
	e := Event{Warning: true, Reason: "VolumeDelete"}
	switch i.kind {
	case Snapshot:
		e.Reason = "SnapshotDelete"
	case Group:
		e.Reason = ofGroup("SnapshotDelete")
	}
	e.Message = fmt.Sprintf("%s %s was being deleted when this was put back: its data is gone, and a new one is made", i.kind, i.name)
	a.m.tell(i, e)
}

// waits tells once that nothing is made before a pod wants it.
func (a acts) waits(i *item) {
	a.m.mu.Lock()
	told := i.waits
	i.waits = true
	a.m.mu.Unlock()
	if !told {
		a.m.tell(i, Event{Reason: "WaitForFirstConsumer", Message: "waiting for first consumer to be created before binding"})
	}
}

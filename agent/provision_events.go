package agent

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/csi/provision"
)

// provisionEvents makes events of what comes of claims and snapshots.
type provisionEvents struct{ events *event.Recorder }

func (p provisionEvents) record(e provision.Event) {
	kind, made := object.PersistentVolumeClaim, object.PersistentVolume
	switch e.Kind {
	case provision.Snapshot:
		kind, made = object.VolumeSnapshot, object.VolumeSnapshotContent
	case provision.Group:
		kind, made = object.VolumeGroupSnapshot, object.VolumeGroupSnapshotContent
	}
	of := corev1.ObjectReference{Namespace: e.Claim.Namespace, Name: e.Claim.Name, UID: types.UID(e.UID)}
	if e.Made {
		kind, of = made, corev1.ObjectReference{Name: e.Name, UID: types.UID(e.Name)}
	}
	of.Kind = string(kind)
	_, of.APIVersion = kind.Empty()
	typ := corev1.EventTypeNormal
	if e.Warning {
		typ = corev1.EventTypeWarning
	}
	p.events.Object(of, typ, e.Reason, "%s", e.Message)
}

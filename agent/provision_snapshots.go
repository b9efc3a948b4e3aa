package agent

import (
	"slices"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/csi/provision"
)

// snapshots are those that are to be made.
func (p *provisioner) snapshots() []provision.Claim {
	var out []provision.Claim
	for _, o := range p.have {
		s, ok := o.(*snapshotv1.VolumeSnapshot)
		if !ok {
			continue
		}
		ref, uid := provision.Ref{Namespace: s.Namespace, Name: s.Name}, provision.UID(p.node, s.Namespace, s.Name)
		var class *snapshotv1.VolumeSnapshotClass
		if s.Spec.Source.PersistentVolumeClaimName != nil {
			class = p.snapshotClass(s)
		}
		if class == nil {
			out = append(out, provision.Claim{Ref: ref, UID: uid, Held: true})
			continue
		}
		out = append(out, provision.Claim{
			Ref: ref, UID: uid, Annotations: s.Annotations,
			Class: provision.Class{
				Name: class.Name, Driver: class.Driver, Parameters: class.Parameters,
				Retain: class.DeletionPolicy == snapshotv1.VolumeSnapshotContentRetain,
			},
			Source: provision.Source{Claim: *s.Spec.Source.PersistentVolumeClaimName},
		})
	}
	return out
}

// snapshotClass is the class of a snapshot, or nil: without a name the default one of the driver that has the volume.
func (p *provisioner) snapshotClass(s *snapshotv1.VolumeSnapshot) *snapshotv1.VolumeSnapshotClass {
	if s.Spec.VolumeSnapshotClassName != nil {
		class, _ := p.have[object.RefTo(object.VolumeSnapshotClass, "", *s.Spec.VolumeSnapshotClassName)].(*snapshotv1.VolumeSnapshotClass)
		return class
	}
	driver := p.driverOf(s.Namespace, *s.Spec.Source.PersistentVolumeClaimName)
	return defaultOf(p.have, defaultSnapshotClass, func(c *snapshotv1.VolumeSnapshotClass) bool { return c.Driver == driver })
}

// groups are the group snapshots that are to be made.
func (p *provisioner) groups() []provision.Claim {
	var out []provision.Claim
	for _, o := range p.have {
		g, ok := o.(*groupsnapshotv1.VolumeGroupSnapshot)
		if !ok {
			continue
		}
		one := provision.Claim{
			Ref: provision.Ref{Namespace: g.Namespace, Name: g.Name}, UID: provision.UID(p.node, "groupsnapshot", g.Namespace, g.Name),
			Annotations: g.Annotations, Members: p.selected(g),
		}
		if class := p.groupClass(g, one.Members); class == nil {
			one.Held = true
		} else {
			one.Class = provision.Class{
				Name: class.Name, Driver: class.Driver, Parameters: class.Parameters,
				Retain: class.DeletionPolicy == snapshotv1.VolumeSnapshotContentRetain,
			}
		}
		out = append(out, one)
	}
	return out
}

// selected are the claims that a group snapshot is of, in order.
func (p *provisioner) selected(g *groupsnapshotv1.VolumeGroupSnapshot) []string {
	selector, err := metav1.LabelSelectorAsSelector(g.Spec.Source.Selector)
	if err != nil { // it is checked when it is read
		return nil
	}
	var out []string
	for _, o := range p.have {
		if c, ok := o.(*corev1.PersistentVolumeClaim); ok && c.Namespace == g.Namespace && selector.Matches(labels.Set(c.Labels)) {
			out = append(out, c.Name)
		}
	}
	slices.Sort(out)
	return out
}

// groupClass is the class of a group snapshot, or nil: without a name the default one of the driver that has the
// volumes.
func (p *provisioner) groupClass(g *groupsnapshotv1.VolumeGroupSnapshot, members []string) *groupsnapshotv1.VolumeGroupSnapshotClass {
	if g.Spec.VolumeGroupSnapshotClassName != nil {
		class, _ := p.have[object.RefTo(object.VolumeGroupSnapshotClass, "", *g.Spec.VolumeGroupSnapshotClassName)].(*groupsnapshotv1.VolumeGroupSnapshotClass)
		return class
	}
	if len(members) == 0 {
		return nil
	}
	driver := p.driverOf(g.Namespace, members[0])
	return defaultOf(p.have, defaultGroupClass, func(c *groupsnapshotv1.VolumeGroupSnapshotClass) bool { return c.Driver == driver })
}

// attributes are those that a claim wants its volume to have.
func (p *provisioner) attributes(c *corev1.PersistentVolumeClaim) provision.Attributes {
	if c.Spec.VolumeAttributesClassName == nil || *c.Spec.VolumeAttributesClassName == "" {
		return provision.Attributes{}
	}
	out := provision.Attributes{Class: *c.Spec.VolumeAttributesClassName}
	if class, ok := p.have[object.RefTo(object.VolumeAttributesClass, "", out.Class)].(*storagev1.VolumeAttributesClass); ok {
		out.Driver, out.Parameters = class.DriverName, class.Parameters
	}
	return out
}

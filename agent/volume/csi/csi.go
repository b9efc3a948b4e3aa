// Package csi is the kind of volumes that CSI drivers make: those of PersistentVolumes, and those that a pod has
// inline. What a CSIDriver object says of a driver is decided here; what is asked of the driver, and when, is
// csi/node's.
package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-node/berth/agent/volume/kind"
	drivers "github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/node"
)

// plugin is kubelet's name of what makes these volumes.
const plugin = "csi"

// What the Secrets of a volume are for.
const (
	useStage   = "stage"
	usePublish = "publish"
	useAttach  = "attach"
	useExpand  = "expand"
)

// Volumes gives pods the volumes of drivers, and takes them away.
type Volumes interface {
	Publish(context.Context, node.Request) (node.Published, error)
	Release(ctx context.Context, podDir string) error
	Users(driver, handle string) []node.Pod
}

// Config is what a [Kind] works with.
type Config struct {
	// Volumes makes the volumes. nil: no pod can have any, as where only the directories of pods are looked at.
	Volumes Volumes
	// Driver is the CSIDriver object of a name, as a pod is to have it; an error: there is none.
	Driver func(pod *corev1.Pod, name string) (*storagev1.CSIDriver, error)
	// Served is what an API server does for the volumes of its pods.
	Served Served
	// Released is called when a pod has lost its volumes: another may have waited for that.
	Released func()
}

// Kind are the volumes of CSI drivers.
type Kind struct{ cfg Config }

// New returns the kind.
func New(c Config) *Kind { return &Kind{c} }

// Traits says that a driver mounts in the pod's directory, or gives the pod a device.
func (*Kind) Traits() kind.Traits { return kind.Traits{Plugin: plugin, Block: true, Elsewhere: true} }

// Makes says whether the source is a driver's volume.
func (*Kind) Makes(s kind.Source) bool {
	if s.Bound != nil {
		return s.Bound.Spec.CSI != nil
	}
	return s.Pod.CSI != nil
}

// ReadOnly says whether the volume is for reading only, which the mount of a driver alone does not see to.
func (*Kind) ReadOnly(s kind.Source) bool {
	if s.Bound != nil {
		return s.Bound.Spec.CSI.ReadOnly
	}
	return s.Pod.CSI.ReadOnly != nil && *s.Pod.CSI.ReadOnly
}

// Secrets names what the driver's calls need.
func (*Kind) Secrets(s kind.Source) []kind.SecretRef {
	if s.Bound == nil {
		if ref := s.Pod.CSI.NodePublishSecretRef; ref != nil {
			return []kind.SecretRef{{Use: usePublish, Name: ref.Name}}
		}
		return nil
	}
	var out []kind.SecretRef
	for _, r := range []struct {
		use string
		ref *corev1.SecretReference
	}{
		{useStage, s.Bound.Spec.CSI.NodeStageSecretRef},
		{usePublish, s.Bound.Spec.CSI.NodePublishSecretRef},
		{useAttach, s.Bound.Spec.CSI.ControllerPublishSecretRef},
		{useExpand, s.Bound.Spec.CSI.NodeExpandSecretRef},
	} {
		if r.ref != nil {
			ref := kind.SecretRef{Use: r.use, Namespace: r.ref.Namespace, Name: r.ref.Name, Controller: r.use == useAttach}
			out = append(out, ref)
		}
	}
	return out
}

// Setup has the driver give the pod its volume.
func (k *Kind) Setup(ctx context.Context, v *kind.Volume) (kind.Made, error) {
	if k.cfg.Volumes == nil {
		return kind.Made{}, errors.New("CSI drivers are not called here")
	}
	r, says, err := k.request(v)
	if err != nil {
		return kind.Made{}, err
	}
	if err := k.alone(&r); err != nil {
		return kind.Made{}, err
	}
	k.serve(v, &r, &says)
	p, err := k.cfg.Volumes.Publish(ctx, r)
	if k.cfg.Served.Given != nil && p.Fresh { // also where it is still to be expanded
		k.cfg.Served.Given()
	}
	if errors.Is(err, drivers.ErrNotRegistered) {
		err = fmt.Errorf("%w; the pod starts when it is", err)
	}
	if call, ok := errors.AsType[*drivers.Error](err); ok && call.Method == "ControllerPublishVolume" {
		err = &attachError{err}
	}
	if err != nil {
		return kind.Made{}, err
	}
	return kind.Made{Path: p.Path, Group: !p.Group && says.group(&r)}, nil
}

// attachError is of a volume that is not attached to the node. It has an event of its own.
type attachError struct{ err error }

func (e *attachError) Error() string { return e.err.Error() }

// Unwrap is what went wrong.
func (e *attachError) Unwrap() error { return e.err }

// FailedAttach marks the error for who tells of it.
func (*attachError) FailedAttach() {}

// Unpublish has the drivers take the pod's volumes away.
func (k *Kind) Unpublish(ctx context.Context, dir string) error {
	if k.cfg.Volumes == nil {
		return nil
	}
	if err := k.cfg.Volumes.Release(ctx, dir); err != nil {
		return err
	}
	if k.cfg.Released != nil {
		k.cfg.Released()
	}
	return nil
}

// request is what a volume asks of its driver.
func (k *Kind) request(v *kind.Volume) (node.Request, behaviour, error) {
	r := node.Request{
		Volume: node.Volume{Block: v.Block(), AccessMode: node.ReadWriteOnce, MountFlags: slices.Clone(v.MountOptions())},
		Pod: node.Pod{
			Namespace: v.Pod.Namespace, Name: v.Pod.Name, UID: string(v.Pod.UID), ServiceAccount: v.Pod.Spec.ServiceAccountName,
		},
		PodDir: v.Dir,
		Secrets: node.Secrets{
			Stage: drivers.Secrets(v.Secrets[useStage]), Publish: drivers.Secrets(v.Secrets[usePublish]),
			ControllerPublish: drivers.Secrets(v.Secrets[useAttach]), NodeExpand: drivers.Secrets(v.Secrets[useExpand]),
		},
	}
	if v.Bound != nil {
		s := v.Bound.Spec.CSI
		r.Driver, r.Handle, r.Name, r.FSType, r.Attributes = s.Driver, s.VolumeHandle, v.Bound.Name, s.FSType, s.VolumeAttributes
		r.ReadOnly = s.ReadOnly || v.Source.Pod.PersistentVolumeClaim != nil && v.Source.Pod.PersistentVolumeClaim.ReadOnly
		if ref := s.ControllerPublishSecretRef; ref != nil {
			r.AttachSecret = node.SecretRef{Namespace: ref.Namespace, Name: ref.Name}
		}
		if modes := v.Bound.Spec.AccessModes; len(modes) > 0 { // the first, as under kubelet
			r.AccessMode = node.AccessMode(modes[0])
		}
	} else {
		s := v.Source.Pod.CSI
		r.Driver, r.Name, r.Ephemeral, r.Attributes = s.Driver, v.Name, true, s.VolumeAttributes
		r.ReadOnly = s.ReadOnly != nil && *s.ReadOnly
		if s.FSType != nil {
			r.FSType = *s.FSType
		}
	}
	says := k.behaviour(v.Pod, r.Driver)
	if err := says.takes(&r); err != nil {
		return r, says, err
	}
	r.PodInfo, r.Republish, r.Attached = says.podInfo, says.republish, !says.attach
	if s := v.Pod.Spec.SecurityContext; s != nil && !r.Block {
		r.Group = s.FSGroup
	}
	if says.label && !r.Block {
		label, err := labelOf(v.Pod, v.Name)
		if err != nil {
			return r, says, err
		}
		if label != "" {
			r.MountFlags = append(r.MountFlags, "context="+quoted(label))
		}
	}
	return r, says, nil
}

// alone refuses a volume that one pod may have to a second one.
func (k *Kind) alone(r *node.Request) error {
	if r.AccessMode != node.ReadWriteOncePod {
		return nil
	}
	for _, u := range k.cfg.Volumes.Users(r.Driver, r.Handle) {
		if u.UID != r.Pod.UID {
			return fmt.Errorf("its access mode is ReadWriteOncePod, and pod %s/%s has it: this one starts when that one has gone",
				u.Namespace, u.Name)
		}
	}
	return nil
}

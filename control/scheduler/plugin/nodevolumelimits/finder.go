package nodevolumelimits

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/scheduler/plugin"
)

// id is a volume: two claims, or two pods of one claim, that come to one are one.
type id struct {
	driver, handle string
	// claim is that of a volume that there is not yet, and has no handle.
	claim cache.ObjectName
}

// ids are a set of volumes.
type ids map[id]bool

// of is how many of them are a driver's.
func (s ids) of(driver string) int {
	n := 0
	for one := range s {
		if one.driver == driver {
			n++
		}
	}
	return n
}

// byNode is the index of attachments by the nodes that they are of.
const byNode = "scheduler.node"

// finder finds which volumes of which drivers claims come to.
type finder struct {
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	classes     storagelisters.StorageClassLister
	attachments cache.Indexer
}

func newFinder(f informers.SharedInformerFactory) (finder, error) {
	core, storage := f.Core().V1(), f.Storage().V1()
	attachments := storage.VolumeAttachments().Informer()
	// Profiles share informers: the first one's index is all profiles'.
	err := controller.Index(attachments, byNode, func(o any) ([]string, error) {
		a, ok := o.(*storagev1.VolumeAttachment)
		if !ok {
			return nil, fmt.Errorf("index attachment: it is a %T", o)
		}
		return []string{a.Spec.NodeName}, nil
	})
	if err != nil {
		return finder{}, err
	}
	return finder{
		core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister(), storage.StorageClasses().Lister(), attachments.GetIndexer(),
	}, nil
}

// ofPod adds the volumes of a pod. Of a claim that is not there, or not the pod's, it has an error, and all others.
func (f *finder) ofPod(pod *corev1.Pod, found ids) error {
	var first error
	for v, name := range plugin.Claims(pod) {
		if err := f.ofClaim(pod, v, name, found); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (f *finder) ofClaim(pod *corev1.Pod, v *corev1.Volume, name string, found ids) error {
	claim, err := f.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
	if err != nil {
		return fmt.Errorf("look up PVC %s/%s: %w", pod.Namespace, name, err)
	}
	if v.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return err
		}
	}
	if claim.Spec.VolumeName != "" {
		switch bound, err := f.volumes.Get(claim.Spec.VolumeName); {
		case err == nil:
			add(bound, found)
			return nil
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("look up volume of PVC %s/%s: %w", pod.Namespace, name, err)
		}
		// A volume that cannot be seen yet is one of the class's driver.
	}
	class, err := f.classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	if err == nil && class.Provisioner != "" {
		found[id{driver: class.Provisioner, claim: cache.MetaObjectToName(claim)}] = true
	}
	return nil // without a class nobody makes a volume
}

// add adds a volume, if it is a driver's.
func add(v *corev1.PersistentVolume, found ids) {
	if s := v.Spec.CSI; s != nil {
		found[id{driver: s.Driver, handle: s.VolumeHandle}] = true
	}
}

// attached adds the volumes that are attached to a node, or are to be.
func (f *finder) attached(node string, found ids) error {
	all, err := f.attachments.ByIndex(byNode, node)
	if err != nil {
		return fmt.Errorf("list attachments of node %s: %w", node, err)
	}
	for _, o := range all {
		a, ok := o.(*storagev1.VolumeAttachment)
		if !ok || a.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		if v, err := f.volumes.Get(*a.Spec.Source.PersistentVolumeName); err == nil {
			add(v, found)
		}
	}
	return nil
}

package volumebinder

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/control/controller"
)

// The indexes of what informers have.
const (
	byClass = "volumebinder-class" // volumes; claims that have none yet
	byRef   = "volumebinder-claim" // volumes by the claim that they refer to
)

// lateness is how long an informer may take to hear of what was written here.
const lateness = time.Minute

// known is a world: what informers have, with what was written since.
type known struct {
	claims, volumes         cache.MutationCache
	claimIndex, volumeIndex cache.Indexer
	pods                    cache.Indexer
	classes                 storagelisters.StorageClassLister
}

func newKnown(d Deps) (*known, error) {
	for i, by := range map[cache.SharedIndexInformer]cache.Indexers{
		d.Claims.Informer(): {byClass: func(o any) ([]string, error) {
			if c, ok := o.(*corev1.PersistentVolumeClaim); ok && isOpen(c) {
				return []string{volume.GetPersistentVolumeClaimClass(c)}, nil
			}
			return nil, nil
		}},
		d.Volumes.Informer(): {byClass: func(o any) ([]string, error) {
			if v, ok := o.(*corev1.PersistentVolume); ok {
				return []string{volume.GetPersistentVolumeClass(v)}, nil
			}
			return nil, nil
		}, byRef: func(o any) ([]string, error) {
			if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil {
				return []string{v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name}, nil
			}
			return nil, nil
		}},
	} {
		if err := i.AddIndexers(by); err != nil {
			return nil, fmt.Errorf("index what claims and volumes refer to: %w", err)
		}
	}
	if err := controller.IndexByClaim(d.Pods.Informer()); err != nil {
		return nil, fmt.Errorf("index pods by their claims: %w", err)
	}
	claims, volumes := d.Claims.Informer().GetIndexer(), d.Volumes.Informer().GetIndexer()
	return &known{
		claims:     cache.NewIntegerResourceVersionMutationCache(klog.Background(), claims, claims, lateness, false),
		volumes:    cache.NewIntegerResourceVersionMutationCache(klog.Background(), volumes, volumes, lateness, false),
		claimIndex: claims, volumeIndex: volumes, pods: d.Pods.Informer().GetIndexer(), classes: d.Classes.Lister(),
	}, nil
}

// isOpen says whether a claim has no volume yet.
func isOpen(c *corev1.PersistentVolumeClaim) bool {
	_, bound := c.Annotations[volume.AnnBindCompleted]
	return !bound
}

func (k *known) claim(namespace, name string) *corev1.PersistentVolumeClaim {
	o, _, _ := k.claims.GetByKey(namespace + "/" + name)
	c, _ := o.(*corev1.PersistentVolumeClaim)
	return c
}

func (k *known) volume(name string) *corev1.PersistentVolume {
	o, _, _ := k.volumes.GetByKey(name)
	v, _ := o.(*corev1.PersistentVolume)
	return v
}

func (k *known) candidates(class string) []*corev1.PersistentVolume {
	all, err := k.volumes.ByIndex(byClass, class)
	if err != nil {
		return nil // the index was made with the cache
	}
	return of[*corev1.PersistentVolume](all)
}

func (k *known) class(name string) *storagev1.StorageClass {
	c, err := k.classes.Get(name)
	if err != nil {
		return nil
	}
	return c
}

// defaultClass is the newest of those that say that they are, as it is for claims that are made.
func (k *known) defaultClass() *storagev1.StorageClass {
	all, err := k.classes.List(labels.Everything())
	if err != nil {
		return nil // a lister of what is in memory does not fail
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c *storagev1.StorageClass) bool {
		return c.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" &&
			c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] != "true"
	})
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b *storagev1.StorageClass) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

func (k *known) waiting(c *corev1.PersistentVolumeClaim) []string {
	var names []string
	for _, p := range controller.UsersOf(k.pods, c.Namespace, c.Name) {
		if p.Spec.NodeName == "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// open are the claims of a class that have no volume yet.
func (k *known) open(class string) []key {
	all, err := k.claimIndex.ByIndex(byClass, class)
	if err != nil {
		return nil
	}
	var keys []key
	for _, c := range of[*corev1.PersistentVolumeClaim](all) {
		keys = append(keys, cache.MetaObjectToName(c))
	}
	return keys
}

// meantFor are the volumes that refer to a claim.
func (k *known) meantFor(c *corev1.PersistentVolumeClaim) []*corev1.PersistentVolume {
	all, err := k.volumeIndex.ByIndex(byRef, c.Namespace+"/"+c.Name)
	if err != nil {
		return nil
	}
	return of[*corev1.PersistentVolume](all)
}

func of[T any](all []any) []T {
	var typed []T
	for _, o := range all {
		if t, ok := o.(T); ok {
			typed = append(typed, t)
		}
	}
	return typed
}

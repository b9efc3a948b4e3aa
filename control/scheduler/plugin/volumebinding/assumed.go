package volumebinding

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
)

// assumed are volumes and claims as they are going to be: pods that are bound meanwhile do not get the same ones.
type assumed struct {
	mu      *sync.Mutex
	volumes map[string]*corev1.PersistentVolume
	claims  map[cache.ObjectName]*corev1.PersistentVolumeClaim
}

func newAssumed() assumed {
	return assumed{&sync.Mutex{}, map[string]*corev1.PersistentVolume{}, map[cache.ObjectName]*corev1.PersistentVolumeClaim{}}
}

// take assumes what a pod is given on a node.
func (a *assumed) take(c choice, node string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, p := range c.bind {
		if other := a.volumes[p.volume.Name]; other != nil && !volume.IsVolumeBoundToClaim(other, p.claim) {
			for _, taken := range c.bind[:i] {
				delete(a.volumes, taken.volume.Name)
			}
			return fmt.Errorf("take volume %s: another pod's claim has it", p.volume.Name)
		}
		v, _, err := volume.GetBindVolumeToClaim(p.volume, p.claim)
		if err != nil {
			return fmt.Errorf("take volume %s: %w", p.volume.Name, err)
		}
		a.volumes[v.Name] = v
	}
	for _, claim := range c.provision {
		o := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, volume.AnnSelectedNode, node)
		a.claims[cache.MetaObjectToName(o)] = o
	}
	return nil
}

func (a *assumed) giveBack(c choice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range c.bind {
		// What another pod has taken is not this one's to give.
		if v := a.volumes[p.volume.Name]; v != nil && volume.IsVolumeBoundToClaim(v, p.claim) {
			delete(a.volumes, p.volume.Name)
		}
	}
	for _, claim := range c.provision {
		delete(a.claims, cache.MetaObjectToName(claim))
	}
}

// claim is a claim as it is assumed to be, as long as the cache has the one that this was assumed of.
func (a *assumed) claim(l corelisters.PersistentVolumeClaimLister, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	c, err := l.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if o := a.claims[cache.MetaObjectToName(c)]; o != nil && o.ResourceVersion == c.ResourceVersion {
		return o, nil
	}
	return c, nil
}

// all are the volumes by their classes.
func (a *assumed) all(l corelisters.PersistentVolumeLister) (map[string][]*corev1.PersistentVolume, error) {
	list, err := l.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	by := map[string][]*corev1.PersistentVolume{}
	for _, v := range list {
		if o := a.volumes[v.Name]; o != nil && v.Spec.ClaimRef == nil {
			v = o
		}
		class := volume.GetPersistentVolumeClass(v)
		by[class] = append(by[class], v)
	}
	return by, nil
}

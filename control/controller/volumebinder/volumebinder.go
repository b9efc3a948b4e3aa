// Package volumebinder brings claims and volumes together: it finds a volume for a claim, or asks the provisioner of
// its class for one, and gives back the volumes whose claims are gone.
package volumebinder

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-node/berth/control/controller"
)

// key is a claim, or a volume where it has no namespace.
type key = cache.ObjectName

// Deps are what the controller is made of.
type Deps struct {
	Client  kubernetes.Interface
	Pods    coreinformers.PodInformer
	Claims  coreinformers.PersistentVolumeClaimInformer
	Volumes coreinformers.PersistentVolumeInformer
	Classes storageinformers.StorageClassInformer
	Events  record.EventRecorder
	Log     *slog.Logger
}

type binder struct {
	client kubernetes.Interface
	events record.EventRecorder
	known  *known
	loop   *controller.Loop[key]
}

// New makes the controller.
func New(d Deps) (controller.Controller, error) {
	k, err := newKnown(d)
	if err != nil {
		return nil, err
	}
	b := &binder{client: d.Client, events: d.Events, known: k}
	// One worker: two claims that are matched at a time would be given the same volume, and one of them be refused.
	b.loop = controller.NewLoop(d.Log, 1, b.sync).
		Watch(d.Volumes.Informer(), b.ofVolume).
		Watch(d.Claims.Informer(), b.ofClaim).
		Watch(d.Classes.Informer(), b.ofClass).
		Watch(d.Pods.Informer(), b.ofPod)
	return b.loop, nil
}

func (b *binder) ofClaim(o any) []key {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil
	}
	keys := []key{cache.MetaObjectToName(claim)}
	if claim.Spec.VolumeName != "" {
		keys = append(keys, key{Name: claim.Spec.VolumeName})
	}
	for _, v := range b.known.meantFor(claim) {
		keys = append(keys, key{Name: v.Name})
	}
	return keys
}

// ofVolume are the volume, and the claims that may have it.
func (b *binder) ofVolume(o any) []key {
	v, ok := o.(*corev1.PersistentVolume)
	if !ok {
		return nil
	}
	keys := []key{{Name: v.Name}}
	if ref := v.Spec.ClaimRef; ref != nil {
		return append(keys, key{Namespace: ref.Namespace, Name: ref.Name})
	}
	return append(keys, b.known.open(volume.GetPersistentVolumeClass(v))...)
}

func (b *binder) ofClass(o any) []key {
	c, ok := o.(*storagev1.StorageClass)
	if !ok {
		return nil
	}
	// A claim without a class gets the default one, which this may be.
	return append(b.known.open(c.Name), b.known.open("")...)
}

// ofPod are the claims that wait for a pod: what they are said to wait for is another thing now.
func (b *binder) ofPod(o any) []key {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.NodeName != "" {
		return nil
	}
	var keys []key
	for _, name := range controller.ClaimsOf(p) {
		if c := b.known.claim(p.Namespace, name); c != nil && isOpen(c) {
			keys = append(keys, cache.MetaObjectToName(c))
		}
	}
	return keys
}

func (b *binder) sync(ctx context.Context, k key) (time.Duration, error) {
	if k.Namespace == "" {
		v := b.known.volume(k.Name)
		if v == nil {
			return 0, nil
		}
		return 0, b.do(ctx, forVolume(b.known, v))
	}
	claim := b.known.claim(k.Namespace, k.Name)
	if claim == nil {
		return 0, nil
	}
	v, err := forClaim(b.known, claim)
	if err != nil {
		return 0, err
	}
	return 0, b.do(ctx, v)
}

// do does what was decided.
func (b *binder) do(ctx context.Context, v verdict) error {
	switch v.act {
	case bind:
		return b.bind(ctx, v.volume, v.claim)
	case pend:
		return b.claimPhase(ctx, v.claim, nil, corev1.ClaimPending, v.tell, true)
	case lose:
		return b.lose(ctx, v)
	case giveClass:
		return b.giveClass(ctx, v.claim, v.class)
	case provision:
		return b.provision(ctx, v)
	case free:
		if v.claim != nil {
			b.loop.Add(cache.MetaObjectToName(v.claim))
		}
		_, err := b.volumePhase(ctx, v.volume, corev1.VolumeAvailable, v.tell)
		return err
	case keep:
		_, err := b.volumePhase(ctx, v.volume, corev1.VolumeBound, v.tell)
		return err
	case release, fail:
		return b.release(ctx, v)
	case unbind:
		return b.unbind(ctx, v.volume)
	case askClaim:
		b.loop.Add(cache.MetaObjectToName(v.claim))
	}
	if v.tell.reason != "" && v.volume != nil {
		b.events.Event(v.volume, v.tell.kind, v.tell.reason, v.tell.message)
	}
	return nil
}

// lose says that a claim has lost its volume, if it really has: the cache of volumes may be behind that of claims.
func (b *binder) lose(ctx context.Context, v verdict) error {
	if v.claim.Spec.VolumeName != "" {
		live, err := b.liveVolume(ctx, v.claim.Spec.VolumeName)
		if err != nil {
			return err
		}
		if live != nil && (live.Spec.ClaimRef == nil || live.Spec.ClaimRef.UID == v.claim.UID) {
			return fmt.Errorf("look at claim %s/%s: its volume is not known yet: %w", v.claim.Namespace, v.claim.Name, controller.ErrWait)
		}
	}
	return b.claimPhase(ctx, v.claim, nil, corev1.ClaimLost, v.tell, false)
}

// release says that a volume's claim is gone, if it really is.
func (b *binder) release(ctx context.Context, v verdict) error {
	ref := v.volume.Spec.ClaimRef
	live, err := b.liveClaim(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return err
	}
	if live != nil && live.UID == ref.UID && (live.Spec.VolumeName == "" || live.Spec.VolumeName == v.volume.Name) {
		return fmt.Errorf("look at volume %s: its claim is not known yet: %w", v.volume.Name, controller.ErrWait)
	}
	phase := corev1.VolumeReleased
	if v.act == fail {
		phase = corev1.VolumeFailed
	}
	_, err = b.volumePhase(ctx, v.volume, phase, v.tell)
	return err
}

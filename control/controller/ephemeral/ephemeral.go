// Package ephemeral makes the claims of pods' generic ephemeral volumes, which go with the pods.
package ephemeral

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-node/berth/control/controller"
)

const workers = 4

type maker struct {
	client kubernetes.Interface
	pods   corelisters.PodLister
	claims corelisters.PersistentVolumeClaimLister
	events record.EventRecorder
}

// New makes the controller.
func New(client kubernetes.Interface, pods coreinformers.PodInformer, claims coreinformers.PersistentVolumeClaimInformer,
	events record.EventRecorder, log *slog.Logger,
) (controller.Controller, error) {
	if err := controller.IndexByClaim(pods.Informer()); err != nil {
		return nil, fmt.Errorf("index pods by their claims: %w", err)
	}
	m := &maker{client, pods.Lister(), claims.Lister(), events}
	index := pods.Informer().GetIndexer()
	return controller.NewLoop(log, workers, m.sync).
		Watch(pods.Informer(), func(o any) []cache.ObjectName {
			if p, ok := o.(*corev1.Pod); ok && wants(p) {
				return []cache.ObjectName{cache.MetaObjectToName(p)}
			}
			return nil
		}).
		// A claim that is gone is made again, or one is in the way no longer.
		Watch(claims.Informer(), func(o any) []cache.ObjectName {
			c, ok := o.(*corev1.PersistentVolumeClaim)
			if !ok {
				return nil
			}
			if _, err := m.claims.PersistentVolumeClaims(c.Namespace).Get(c.Name); err == nil {
				return nil
			}
			var keys []cache.ObjectName
			for _, p := range controller.UsersOf(index, c.Namespace, c.Name) {
				if wants(p) {
					keys = append(keys, cache.MetaObjectToName(p))
				}
			}
			return keys
		}), nil
}

// wants says whether a pod has volumes whose claims are to be there.
func wants(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	for _, v := range p.Spec.Volumes {
		if v.Ephemeral != nil {
			return true
		}
	}
	return false
}

func (m *maker) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	p, err := m.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find pod %s: %w", key, err)
	}
	if !wants(p) {
		return 0, nil
	}
	var failed []error
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		err := m.ensure(ctx, p, v)
		if controller.Ended(err) {
			return 0, nil
		}
		if err != nil {
			m.events.Eventf(p, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
			failed = append(failed, fmt.Errorf("make claim of volume %s of pod %s: %w", v.Name, key, err))
		}
	}
	return 0, errors.Join(failed...)
}

// ensure makes the claim of a volume. One that has its name and is not the pod's is nobody's to touch.
func (m *maker) ensure(ctx context.Context, p *corev1.Pod, v *corev1.Volume) error {
	name := ephemeral.VolumeClaimName(p, v)
	there, err := m.claims.PersistentVolumeClaims(p.Namespace).Get(name)
	if err == nil {
		return ephemeral.VolumeIsForPod(p, there)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	t := v.Ephemeral.VolumeClaimTemplate
	_, err = m.client.CoreV1().PersistentVolumeClaims(p.Namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: t.Labels, Annotations: t.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: t.Spec,
	}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	there, err = m.client.CoreV1().PersistentVolumeClaims(p.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return ephemeral.VolumeIsForPod(p, there)
}

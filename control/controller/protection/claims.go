package protection

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

// NewClaims makes the controller of claims. A pod that has no node yet does not use its claims: no node starts a pod
// whose claim is deleted.
func NewClaims(client kubernetes.Interface, claims coreinformers.PersistentVolumeClaimInformer, pods coreinformers.PodInformer,
	log *slog.Logger,
) (controller.Controller, error) {
	if err := controller.IndexByClaim(pods.Informer()); err != nil {
		return nil, fmt.Errorf("index pods by their claims: %w", err)
	}
	lister, index := claims.Lister(), pods.Informer().GetIndexer()
	g := guard[*corev1.PersistentVolumeClaim]{
		finalizer: "kubernetes.io/pvc-protection",
		find: func(k cache.ObjectName) (*corev1.PersistentVolumeClaim, error) {
			return lister.PersistentVolumeClaims(k.Namespace).Get(k.Name)
		},
		copy: (*corev1.PersistentVolumeClaim).DeepCopy,
		write: func(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
			_, err := client.CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, c, metav1.UpdateOptions{})
			return err
		},
		used: func(_ context.Context, c *corev1.PersistentVolumeClaim) (bool, error) {
			for _, p := range controller.UsersOf(index, c.Namespace, c.Name) {
				if p.Spec.NodeName != "" && controller.Uses(p, c) {
					return true, nil
				}
			}
			return false, nil
		},
		// A pod that was bound to a node a moment ago may not be known yet.
		live: func(ctx context.Context, c *corev1.PersistentVolumeClaim) (bool, error) {
			all, err := client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, fmt.Errorf("list pods of %s: %w", c.Namespace, err)
			}
			for i := range all.Items {
				if p := &all.Items[i]; p.Spec.NodeName != "" && controller.Uses(p, c) {
					return true, nil
				}
			}
			return false, nil
		},
	}
	return controller.NewLoop(log, workers, g.sync).
		Watch(claims.Informer(), own[*corev1.PersistentVolumeClaim]).
		Watch(pods.Informer(), func(o any) []cache.ObjectName {
			p, ok := o.(*corev1.Pod)
			if !ok {
				return nil
			}
			var keys []cache.ObjectName
			for _, name := range controller.ClaimsOf(p) {
				// Most changes of pods are none of their claims'.
				if c, err := lister.PersistentVolumeClaims(p.Namespace).Get(name); err == nil && c.DeletionTimestamp != nil {
					keys = append(keys, cache.MetaObjectToName(c))
				}
			}
			return keys
		}), nil
}

// NewVolumes makes the controller of volumes: one that is bound is in use.
func NewVolumes(client kubernetes.Interface, volumes coreinformers.PersistentVolumeInformer, log *slog.Logger) controller.Controller {
	lister := volumes.Lister()
	g := guard[*corev1.PersistentVolume]{
		finalizer: "kubernetes.io/pv-protection",
		find:      func(k cache.ObjectName) (*corev1.PersistentVolume, error) { return lister.Get(k.Name) },
		copy:      (*corev1.PersistentVolume).DeepCopy,
		write: func(ctx context.Context, v *corev1.PersistentVolume) error {
			_, err := client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
			return err
		},
		used: func(_ context.Context, v *corev1.PersistentVolume) (bool, error) {
			return v.Status.Phase == corev1.VolumeBound, nil
		},
	}
	return controller.NewLoop(log, workers, g.sync).Watch(volumes.Informer(), own[*corev1.PersistentVolume])
}

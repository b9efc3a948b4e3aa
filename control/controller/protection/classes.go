package protection

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

const byAttributes = "protection-attributes"

// NewAttributesClasses makes the controller of classes of attributes, which claims and volumes use.
func NewAttributesClasses(client kubernetes.Interface, classes storageinformers.VolumeAttributesClassInformer,
	claims coreinformers.PersistentVolumeClaimInformer, volumes coreinformers.PersistentVolumeInformer, log *slog.Logger,
) (controller.Controller, error) {
	index := cache.Indexers{byAttributes: func(o any) ([]string, error) { return attributesOf(o), nil }}
	for _, i := range []cache.SharedIndexInformer{claims.Informer(), volumes.Informer()} {
		if err := i.AddIndexers(index); err != nil {
			return nil, fmt.Errorf("index claims and volumes by their attributes: %w", err)
		}
	}
	lister := classes.Lister()
	g := guard[*storagev1.VolumeAttributesClass]{
		finalizer: "kubernetes.io/vac-protection",
		find:      func(k cache.ObjectName) (*storagev1.VolumeAttributesClass, error) { return lister.Get(k.Name) },
		copy:      (*storagev1.VolumeAttributesClass).DeepCopy,
		write: func(ctx context.Context, c *storagev1.VolumeAttributesClass) error {
			_, err := client.StorageV1().VolumeAttributesClasses().Update(ctx, c, metav1.UpdateOptions{})
			return err
		},
		used: func(_ context.Context, c *storagev1.VolumeAttributesClass) (bool, error) {
			for _, i := range []cache.Indexer{claims.Informer().GetIndexer(), volumes.Informer().GetIndexer()} {
				if users, err := i.ByIndex(byAttributes, c.Name); err != nil || len(users) > 0 {
					return true, err
				}
			}
			return false, nil
		},
		live: func(ctx context.Context, c *storagev1.VolumeAttributesClass) (bool, error) {
			return inUse(ctx, client, c.Name)
		},
	}
	users := func(o any) []cache.ObjectName {
		var keys []cache.ObjectName
		for _, name := range attributesOf(o) {
			keys = append(keys, cache.ObjectName{Name: name})
		}
		return keys
	}
	return controller.NewLoop(log, workers, g.sync).
		Watch(classes.Informer(), own[*storagev1.VolumeAttributesClass]).
		Watch(claims.Informer(), users).Watch(volumes.Informer(), users), nil
}

// attributesOf are the classes of attributes that a claim has, wants, or is on its way to, and that of a volume.
func attributesOf(o any) []string {
	var all []string
	add := func(name *string) {
		if name != nil && *name != "" && !slices.Contains(all, *name) {
			all = append(all, *name)
		}
	}
	switch o := o.(type) {
	case *corev1.PersistentVolume:
		add(o.Spec.VolumeAttributesClassName)
	case *corev1.PersistentVolumeClaim:
		add(o.Spec.VolumeAttributesClassName)
		add(o.Status.CurrentVolumeAttributesClassName)
		if m := o.Status.ModifyVolumeStatus; m != nil {
			add(&m.TargetVolumeAttributesClassName)
		}
	}
	return all
}

// inUse asks the API whether something uses a class. The lists are read in pieces, since there may be many.
func inUse(ctx context.Context, client kubernetes.Interface, class string) (bool, error) {
	o := metav1.ListOptions{Limit: 500}
	for {
		all, err := client.CoreV1().PersistentVolumeClaims("").List(ctx, o)
		if err != nil {
			return false, fmt.Errorf("list claims: %w", err)
		}
		for i := range all.Items {
			if slices.Contains(attributesOf(&all.Items[i]), class) {
				return true, nil
			}
		}
		if o.Continue = all.Continue; o.Continue == "" {
			break
		}
	}
	for {
		all, err := client.CoreV1().PersistentVolumes().List(ctx, o)
		if err != nil {
			return false, fmt.Errorf("list volumes: %w", err)
		}
		for i := range all.Items {
			if slices.Contains(attributesOf(&all.Items[i]), class) {
				return true, nil
			}
		}
		if o.Continue = all.Continue; o.Continue == "" {
			return false, nil
		}
	}
}

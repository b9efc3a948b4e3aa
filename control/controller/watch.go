package controller

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Name is the key of an object without a namespace.
func Name(o any) []string {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil
	}
	return []string{m.GetName()}
}

// Namespace is the key of the namespace that an object is in.
func Namespace(o any) []string {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil
	}
	return []string{m.GetNamespace()}
}

// Of has only objects of one name lead to keys.
func Of(name string, keys func(any) []string) func(any) []string {
	return func(o any) []string {
		if m, err := meta.Accessor(o); err != nil || m.GetName() != name {
			return nil
		}
		return keys(o)
	}
}

// Always is one key, whatever has changed.
func Always(key string) func(any) []string {
	return func(any) []string { return []string{key} }
}

// ConfigMaps watches the ConfigMaps of one name, in one namespace or in all: others are many, and large.
func ConfigMaps(client kubernetes.Interface, namespace, name string) (cache.SharedIndexInformer, error) {
	i := coreinformers.NewFilteredConfigMapInformer(client, namespace, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		})
	return i, i.SetTransform(WithoutManagers)
}

// WithoutManagers has a cache keep objects without who has set their fields: half of what a small object is.
func WithoutManagers(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

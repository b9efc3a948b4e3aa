// Package rootca keeps the ConfigMap in each namespace by which pods know the API server.
package rootca

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/berth-node/berth/control/controller"
)

const (
	name    = "kube-root-ca.crt"
	key     = "ca.crt"
	about   = "the authorities by which pods know the API server inside of the cluster, and nothing else"
	workers = 2
)

// all is the key by which each namespace is looked at.
const all = ""

// Bundle is the authorities of the API server, in PEM. While one is replaced, they are both.
type Bundle interface {
	CurrentCABundleContent() []byte
}

type publisher struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	maps       corelisters.ConfigMapLister
	bundle     Bundle
	loop       *controller.Loop[string]
}

// New makes the controller. It hears by subscribe that the bundle is another one.
func New(client, reader kubernetes.Interface, informers coreinformers.Interface, bundle Bundle, subscribe func(func()), log *slog.Logger) (controller.Controller, error) {
	configMaps, err := controller.ConfigMaps(reader, metav1.NamespaceAll, name)
	if err != nil {
		return nil, fmt.Errorf("watch ConfigMaps: %w", err)
	}
	namespaces := informers.Namespaces()
	p := &publisher{client: client, namespaces: namespaces.Lister(), maps: corelisters.NewConfigMapLister(configMaps.GetIndexer()), bundle: bundle}
	p.loop = controller.NewLoop(log, workers, p.sync).
		Watch(namespaces.Informer(), controller.Name).
		WatchOwn(configMaps, controller.Namespace)
	subscribe(func() { p.loop.Add(all) })
	return p.loop, nil
}

func (p *publisher) sync(ctx context.Context, namespace string) (time.Duration, error) {
	if namespace == all {
		return 0, p.each()
	}
	n, err := p.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && n.Status.Phase != corev1.NamespaceActive {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find namespace %s: %w", namespace, err)
	}
	want := map[string]string{key: string(p.bundle.CurrentCABundleContent())}
	has, err := p.maps.ConfigMaps(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = p.client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"kubernetes.io/description": about}}, Data: want,
		}, metav1.CreateOptions{})
		if controller.Ended(err) {
			return 0, nil
		}
	case err == nil && !(maps.Equal(has.Data, want) && len(has.BinaryData) == 0):
		has = has.DeepCopy()
		has.Data, has.BinaryData = want, nil
		_, err = p.client.CoreV1().ConfigMaps(namespace).Update(ctx, has, metav1.UpdateOptions{})
	}
	if err != nil {
		return 0, fmt.Errorf("publish authorities in namespace %s: %w", namespace, err)
	}
	return 0, nil
}

// each has all namespaces looked at.
func (p *publisher) each() error {
	list, err := p.namespaces.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for _, n := range list {
		p.loop.Add(n.Name)
	}
	return nil
}

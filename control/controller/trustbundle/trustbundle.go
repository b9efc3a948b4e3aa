// Package trustbundle keeps the ClusterTrustBundle by which pods know the API server, whichever namespace they are in.
package trustbundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

const (
	// Signer is whose bundle it is.
	Signer = "kubernetes.io/kube-apiserver-serving"
	// hashed is how many bytes of the bundle's SHA-256 its name has, as with Kubernetes.
	hashed = 12
	// one is the only key: there is one bundle.
	one = "bundle"
)

// Bundle is the authorities of the API server, in PEM. While one is replaced, they are both.
type Bundle interface {
	CurrentCABundleContent() []byte
}

type publisher struct {
	client  kubernetes.Interface
	bundles certificateslisters.ClusterTrustBundleLister
	bundle  Bundle
}

// New makes the controller. It hears by subscribe that the bundle is another one.
func New(client, reader kubernetes.Interface, bundle Bundle, subscribe func(func()), log *slog.Logger) (controller.Controller, error) {
	bundles := certificatesinformers.NewFilteredClusterTrustBundleInformer(reader, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.signerName", Signer).String()
	})
	if err := bundles.SetTransform(controller.WithoutManagers); err != nil {
		return nil, fmt.Errorf("watch ClusterTrustBundles: %w", err)
	}
	p := &publisher{client, certificateslisters.NewClusterTrustBundleLister(bundles.GetIndexer()), bundle}
	loop := controller.NewLoop(log, 1, p.sync).Start(one).WatchOwn(bundles, controller.Always(one))
	subscribe(func() { loop.Add(one) })
	return loop, nil
}

// sync has there be the bundle, and then no other of the signer: whoever has mounted them by it sees both for a moment,
// and never none.
func (p *publisher) sync(ctx context.Context, _ string) (time.Duration, error) {
	text := p.bundle.CurrentCABundleContent()
	name := nameOf(text)
	all := p.client.CertificatesV1().ClusterTrustBundles()
	has, err := p.bundles.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = all.Create(ctx, &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: Signer, TrustBundle: string(text)},
		}, metav1.CreateOptions{})
	case err == nil && has.Spec.TrustBundle != string(text):
		has = has.DeepCopy()
		has.Spec.TrustBundle = string(text)
		_, err = all.Update(ctx, has, metav1.UpdateOptions{})
	}
	if err != nil {
		return 0, fmt.Errorf("publish trust bundle %s: %w", name, err)
	}
	there, err := p.bundles.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("list trust bundles: %w", err)
	}
	var failed []error
	for _, other := range there {
		if other.Name == name {
			continue
		}
		err := all.Delete(ctx, other.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("remove trust bundle %s: %w", other.Name, err))
		}
	}
	return 0, errors.Join(failed...)
}

// nameOf is what the bundle with a text is called: other authorities are another object.
func nameOf(text []byte) string {
	sum := sha256.Sum256(text)
	return strings.ReplaceAll(Signer, "/", ":") + ":" + hex.EncodeToString(sum[:hashed])
}

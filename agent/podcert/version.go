package podcert

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// asked is a request that a server has, in the version that the server has requests in: 1.37 has v1, and 1.36 v1beta1
// alone, where it is asked for.
type asked struct {
	client Client
	old    bool
	*certificatesv1.PodCertificateRequest
}

const resource = "podcertificaterequests"

func (a *asked) resource() schema.GroupVersionResource {
	if a.old {
		return certificatesv1beta1.SchemeGroupVersion.WithResource(resource)
	}
	return certificatesv1.SchemeGroupVersion.WithResource(resource)
}

// ask makes a request.
func ask(ctx context.Context, c Client, r *certificatesv1.PodCertificateRequest) (*asked, error) {
	a := &asked{client: c, PodCertificateRequest: new(certificatesv1.PodCertificateRequest)}
	err := c.Create(ctx, a.resource(), r, a.PodCertificateRequest)
	if !apierrors.IsNotFound(err) {
		return a, err
	}
	a.old = true
	s := &r.Spec
	made, out := &certificatesv1beta1.PodCertificateRequest{
		ObjectMeta: r.ObjectMeta,
		Spec: certificatesv1beta1.PodCertificateRequestSpec{
			SignerName: s.SignerName, PodName: s.PodName, PodUID: s.PodUID, ServiceAccountName: s.ServiceAccountName,
			ServiceAccountUID: s.ServiceAccountUID, NodeName: s.NodeName, NodeUID: s.NodeUID,
			MaxExpirationSeconds: s.MaxExpirationSeconds, StubPKCS10Request: s.StubPKCS10Request,
			UnverifiedUserAnnotations: s.UnverifiedUserAnnotations,
		},
	}, new(certificatesv1beta1.PodCertificateRequest)
	if older := c.Create(ctx, a.resource(), made, out); older != nil {
		if apierrors.IsNotFound(older) {
			return nil, err
		}
		return nil, older
	}
	a.PodCertificateRequest = answered(out)
	return a, nil
}

// get reads it again.
func (a *asked) get(ctx context.Context) (*certificatesv1.PodCertificateRequest, error) {
	at := types.NamespacedName{Namespace: a.Namespace, Name: a.Name}
	if !a.old {
		out := new(certificatesv1.PodCertificateRequest)
		return out, a.client.Get(ctx, a.resource(), at, out)
	}
	out := new(certificatesv1beta1.PodCertificateRequest)
	err := a.client.Get(ctx, a.resource(), at, out)
	return answered(out), err
}

// watch hears of it.
func (a *asked) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return a.client.Watch(ctx, a.resource(), a.Namespace, opts)
}

// of is a request that was heard of, in whatever version; nil: it is something else.
func of(o runtime.Object) *certificatesv1.PodCertificateRequest {
	switch o := o.(type) {
	case *certificatesv1.PodCertificateRequest:
		return o
	case *certificatesv1beta1.PodCertificateRequest:
		return answered(o)
	}
	return nil
}

// answered is what a server says of a request, without what was asked for.
func answered(o *certificatesv1beta1.PodCertificateRequest) *certificatesv1.PodCertificateRequest {
	return &certificatesv1.PodCertificateRequest{ObjectMeta: o.ObjectMeta, Status: certificatesv1.PodCertificateRequestStatus(o.Status)}
}

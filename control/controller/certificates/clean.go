package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

// How long requests stay: who asked has had the time to read the answer.
const (
	undecidedStays = 24 * time.Hour
	decidedStays   = time.Hour
)

type cleaner struct {
	client   kubernetes.Interface
	requests certificateslisters.CertificateSigningRequestLister
	now      func() time.Time
}

// NewCleaner makes the controller that removes requests which nobody needs any more.
func NewCleaner(client kubernetes.Interface, requests certificatesinformers.CertificateSigningRequestInformer, log *slog.Logger) controller.Controller {
	c := &cleaner{client, requests.Lister(), time.Now}
	return controller.NewLoop(log, 1, c.sync).Of(senderOf(requests.Lister())).Watch(requests.Informer(), controller.Name)
}

func (c *cleaner) sync(ctx context.Context, name string) (time.Duration, error) {
	o, err := c.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find request %s: %w", name, err)
	}
	if left := ends(o).Sub(c.now()); left > 0 {
		return left, nil
	}
	err = c.client.CertificatesV1().CertificateSigningRequests().Delete(ctx, name, metav1.DeleteOptions{
		// What has changed since it was looked at is looked at again.
		Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("remove request %s: %w", name, err)
	}
	return 0, nil
}

// ends is when a request is not needed any more.
func ends(o *certificatesv1.CertificateSigningRequest) time.Time {
	var end time.Time
	sooner := func(t time.Time) {
		if end.IsZero() || t.Before(end) {
			end = t
		}
	}
	for _, kind := range []certificatesv1.RequestConditionType{
		certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed,
	} {
		if c := condition(o, kind); c != nil {
			at := c.LastUpdateTime
			if at.IsZero() {
				at = o.CreationTimestamp
			}
			sooner(at.Add(decidedStays))
		}
	}
	if end.IsZero() {
		sooner(o.CreationTimestamp.Add(undecidedStays))
	}
	if block, _ := pem.Decode(o.Status.Certificate); block != nil {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			sooner(cert.NotAfter)
		}
	}
	return end
}

// podRequestStays is how long a request for a certificate of a pod stays, answered or not: the node has it by then, or
// asks again.
const podRequestStays = 15 * time.Minute

type podCleaner struct {
	client   kubernetes.Interface
	requests certificateslisters.PodCertificateRequestLister
	now      func() time.Time
}

// NewPodCleaner makes the controller that removes requests for certificates of pods when their time is over.
func NewPodCleaner(client kubernetes.Interface, requests certificatesinformers.PodCertificateRequestInformer, log *slog.Logger) controller.Controller {
	c := &podCleaner{client, requests.Lister(), time.Now}
	return controller.NewLoop(log, 1, c.sync).Watch(requests.Informer(), func(o any) []cache.ObjectName {
		r, ok := o.(*certificatesv1.PodCertificateRequest)
		if !ok {
			return nil
		}
		return []cache.ObjectName{cache.MetaObjectToName(r)}
	})
}

func (c *podCleaner) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	o, err := c.requests.PodCertificateRequests(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find request %s: %w", key, err)
	}
	if left := o.CreationTimestamp.Add(podRequestStays).Sub(c.now()); left > 0 {
		return left, nil
	}
	err = c.client.CertificatesV1().PodCertificateRequests(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &o.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("remove request %s: %w", key, err)
	}
	return 0, nil
}

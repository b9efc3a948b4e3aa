package certificates

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"

	"github.com/berth-node/berth/control/controller"
)

const workers = 2

type approver struct {
	client   kubernetes.Interface
	requests certificateslisters.CertificateSigningRequestLister
}

// NewApprover makes the controller that approves client certificates of nodes.
func NewApprover(client kubernetes.Interface, requests certificatesinformers.CertificateSigningRequestInformer, log *slog.Logger) controller.Controller {
	a := &approver{client, requests.Lister()}
	return controller.NewLoop(log, workers, a.sync).Of(senderOf(requests.Lister())).Watch(requests.Informer(), controller.Name)
}

func (a *approver) sync(ctx context.Context, name string) (time.Duration, error) {
	o, err := a.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find request %s: %w", name, err)
	}
	if !undecided(o) || o.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return 0, nil
	}
	r, err := parse(o)
	if err != nil || checkNodeClient(r, o.Spec.Usages) != nil {
		return 0, nil // it is nothing that we approve; an administrator may
	}
	// A node may have the certificate of itself for the asking, and of others for a right that tokens have.
	rights := []string{"nodeclient"}
	if o.Spec.Username == r.Subject.CommonName {
		rights = []string{"selfnodeclient", "nodeclient"}
	}
	for _, right := range rights {
		allowed, err := a.allowed(ctx, o, right)
		if err != nil {
			return 0, err
		}
		if allowed {
			return 0, approve(ctx, a.client, o, "It is the client certificate of a node, for who has the right to "+right)
		}
	}
	// The right may be given later, which no watch tells of.
	return 0, fmt.Errorf("approve request %s: %s has not the right %q: %w", name, o.Spec.Username, rights[0], controller.ErrWait)
}

// allowed asks whether who has sent a request may have what is in it.
func (a *approver) allowed(ctx context.Context, o *certificatesv1.CertificateSigningRequest, right string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range o.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	review, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: o.Spec.Username, UID: o.Spec.UID, Groups: o.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Verb: "create", Subresource: right, Version: "*",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask for the right %s: %w", right, err)
	}
	return review.Status.Allowed, nil
}

// approve says that a request is approved. Its resource version is in it: what was looked at is what is approved.
func approve(ctx context.Context, client kubernetes.Interface, o *certificatesv1.CertificateSigningRequest, why string) error {
	o = o.DeepCopy()
	o.Status.Conditions = append(o.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: why,
	})
	_, err := client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, o.Name, o, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("approve request %s: %w", o.Name, err)
	}
	return nil
}

package admission

import (
	"context"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/tools/cache"
	podsecurity "k8s.io/pod-security-admission/admission"
	"k8s.io/pod-security-admission/admission/api/load"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"
)

// newPodSecurity holds pods to the Pod Security Standards that the labels of their namespace ask for.
func newPodSecurity(g given) (checks, error) {
	config, err := load.LoadFromData(nil) // privileged, where a namespace says nothing
	if err != nil {
		return checks{}, err
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return checks{}, err
	}
	namespaces := g.informers.Core().V1().Namespaces()
	library := &podsecurity.Admission{
		Configuration: config, Evaluator: evaluator, Metrics: noRecord{}, PodSpecExtractor: podsecurity.DefaultPodSpecExtractor{},
		NamespaceGetter: podsecurity.NamespaceGetterFromListerAndClient(namespaces.Lister(), g.client),
		PodLister:       podsecurity.PodListerFromInformer(g.informers.Core().V1().Pods().Lister()),
	}
	if err := library.CompleteConfiguration(); err != nil {
		return checks{}, err
	}
	if err := library.ValidateConfiguration(); err != nil {
		return checks{}, err
	}
	return checks{
		operations: onWrite(), synced: []cache.InformerSynced{namespaces.Informer().HasSynced},
		resources: []string{
			"namespaces", "pods", "pods/ephemeralcontainers", "pods/resize", "replicationcontrollers", "podtemplates", "deployments.apps", "replicasets.apps",
			"statefulsets.apps", "daemonsets.apps", "jobs.batch", "cronjobs.batch",
		},
		validate: func(ctx context.Context, a admission.Attributes) error {
			answer := library.Validate(ctx, asked{a})
			for _, w := range answer.Warnings {
				warning.AddWarning(ctx, "", w)
			}
			for key, value := range answer.AuditAnnotations {
				audit.AddAuditAnnotation(ctx, api.AuditAnnotationPrefix+key, value)
			}
			if answer.Allowed {
				return nil
			}
			return refused(a, answer)
		},
	}, nil
}

// refused is the error that the library's answer stands for.
func refused(a admission.Attributes, answer *admissionv1.AdmissionResponse) error {
	err := admission.NewForbidden(a, errors.New("Not allowed by PodSecurity"))
	var status *apierrors.StatusError
	if answer.Result == nil || !errors.As(err, &status) {
		return err
	}
	r := answer.Result
	if r.Message != "" {
		status.ErrStatus.Message = r.Message
	}
	if r.Reason != "" {
		status.ErrStatus.Reason = r.Reason
	}
	if r.Details != nil {
		status.ErrStatus.Details = r.Details
	}
	if r.Code != 0 {
		status.ErrStatus.Code = r.Code
	}
	return status
}

// asked is a request as the library wants it.
type asked struct{ admission.Attributes }

func (r asked) GetObject() (runtime.Object, error)    { return present(r.Attributes.GetObject()) }
func (r asked) GetOldObject() (runtime.Object, error) { return present(r.Attributes.GetOldObject()) }

func (r asked) GetOperation() admissionv1.Operation {
	return admissionv1.Operation(r.Attributes.GetOperation())
}
func (r asked) GetUserName() string { return r.GetUserInfo().GetName() }

func present(o runtime.Object) (runtime.Object, error) {
	if o == nil {
		return nil, fmt.Errorf("the request has no object")
	}
	return o, nil
}

// noRecord counts nothing: what plugins answer is counted for all of them alike.
type noRecord struct{}

func (noRecord) RecordEvaluation(metrics.Decision, api.LevelVersion, metrics.Mode, api.Attributes) {}

func (noRecord) RecordExemption(api.Attributes) {}

func (noRecord) RecordError(bool, api.Attributes) {}

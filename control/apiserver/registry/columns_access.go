package registry

import (
	"cmp"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

func roleColumns() []column { return createdColumns() }

func bindingColumns() []column {
	parts := func(o runtime.Object) (rbacv1.RoleRef, []rbacv1.Subject) {
		switch b := o.(type) {
		case *rbacv1.RoleBinding:
			return b.RoleRef, b.Subjects
		case *rbacv1.ClusterRoleBinding:
			return b.RoleRef, b.Subjects
		}
		return rbacv1.RoleRef{}, nil
	}
	subjects := func(kind string) column {
		return wide(own(kind+"s", "string", func(o runtime.Object) any {
			var names []string
			_, all := parts(o)
			for _, s := range all {
				switch {
				case s.Kind == kind && kind == rbacv1.ServiceAccountKind:
					names = append(names, s.Namespace+"/"+s.Name)
				case s.Kind == kind:
					names = append(names, s.Name)
				}
			}
			return strings.Join(names, ", ")
		}))
	}
	return []column{
		own("Role", "string", func(o runtime.Object) any { ref, _ := parts(o); return ref.Kind + "/" + ref.Name }),
		subjects(rbacv1.UserKind), subjects(rbacv1.GroupKind), subjects(rbacv1.ServiceAccountKind),
	}
}

func webhookColumns() []column {
	return []column{own("Webhooks", "integer", func(o runtime.Object) any {
		switch w := o.(type) {
		case *admissionv1.MutatingWebhookConfiguration:
			return int64(len(w.Webhooks))
		case *admissionv1.ValidatingWebhookConfiguration:
			return int64(len(w.Webhooks))
		}
		return int64(0)
	})}
}

func admissionPolicyColumns(counts string) []column {
	param := func(k *admissionv1.ParamKind) any {
		if k == nil {
			return unset
		}
		return k.APIVersion + "/" + k.Kind
	}
	return []column{
		own(counts, "integer", func(o runtime.Object) any {
			switch p := o.(type) {
			case *admissionv1.ValidatingAdmissionPolicy:
				return int64(len(p.Spec.Validations))
			case *admissionv1.MutatingAdmissionPolicy:
				return int64(len(p.Spec.Mutations))
			}
			return int64(0)
		}),
		own("ParamKind", "string", func(o runtime.Object) any {
			switch p := o.(type) {
			case *admissionv1.ValidatingAdmissionPolicy:
				return param(p.Spec.ParamKind)
			case *admissionv1.MutatingAdmissionPolicy:
				return param(p.Spec.ParamKind)
			}
			return unset
		}),
	}
}

func policyBindingColumns() []column {
	parts := func(o runtime.Object) (string, *admissionv1.ParamRef) {
		switch b := o.(type) {
		case *admissionv1.ValidatingAdmissionPolicyBinding:
			return b.Spec.PolicyName, b.Spec.ParamRef
		case *admissionv1.MutatingAdmissionPolicyBinding:
			return b.Spec.PolicyName, b.Spec.ParamRef
		}
		return "", nil
	}
	return []column{
		own("PolicyName", "string", func(o runtime.Object) any { name, _ := parts(o); return name }),
		own("ParamRef", "string", func(o runtime.Object) any {
			_, ref := parts(o)
			switch {
			case ref == nil:
				return unset
			case ref.Namespace != "":
				return ref.Namespace + "/" + ref.Name
			}
			return "*/" + ref.Name
		}),
	}
}

func bundleColumns() []column {
	return []column{
		col("SignerName", "string", func(o *certificatesv1.ClusterTrustBundle) any { return o.Spec.SignerName }),
	}
}

func podRequestColumns() []column {
	type request = certificatesv1.PodCertificateRequest
	return []column{
		col("PodName", "string", func(o *request) any { return o.Spec.PodName }),
		col("ServiceAccountName", "string", func(o *request) any { return o.Spec.ServiceAccountName }),
		col("NodeName", "string", func(o *request) any { return string(o.Spec.NodeName) }),
		col("SignerName", "string", func(o *request) any { return o.Spec.SignerName }),
		col("State", "string", func(o *request) any {
			if len(o.Status.Conditions) == 0 {
				return "Pending"
			}
			return o.Status.Conditions[0].Type // there is one at most
		}),
	}
}

func requestColumns() []column {
	type csr = certificatesv1.CertificateSigningRequest
	return []column{
		ageHere(),
		col("SignerName", "string", func(o *csr) any { return o.Spec.SignerName }),
		col("Requestor", "string", func(o *csr) any { return o.Spec.Username }),
		col("RequestedDuration", "string", func(o *csr) any {
			if o.Spec.ExpirationSeconds == nil {
				return none
			}
			return duration.HumanDuration(time.Duration(*o.Spec.ExpirationSeconds) * time.Second)
		}),
		col("Condition", "string", func(o *csr) any {
			var all []string
			for _, c := range o.Status.Conditions {
				all = append(all, string(c.Type))
			}
			if len(all) == 0 {
				all = []string{"Pending"}
			}
			if len(o.Status.Certificate) > 0 {
				all = append(all, "Issued")
			}
			return strings.Join(all, ",")
		}),
	}
}

// byPrecedence is the order in which flow schemas are tried.
func byPrecedence(a, b runtime.Object) int {
	x, y := a.(*flowcontrolv1.FlowSchema), b.(*flowcontrolv1.FlowSchema)
	return cmp.Or(cmp.Compare(x.Spec.MatchingPrecedence, y.Spec.MatchingPrecedence), cmp.Compare(x.Name, y.Name))
}

func flowSchemaColumns() []column {
	return []column{
		col("PriorityLevel", "string", func(o *flowcontrolv1.FlowSchema) any { return o.Spec.PriorityLevelConfiguration.Name }),
		col("MatchingPrecedence", "string", func(o *flowcontrolv1.FlowSchema) any { return int64(o.Spec.MatchingPrecedence) }),
		col("DistinguisherMethod", "string", func(o *flowcontrolv1.FlowSchema) any {
			if o.Spec.DistinguisherMethod == nil {
				return none
			}
			return string(o.Spec.DistinguisherMethod.Type)
		}),
		ageHere(),
		col("MissingPL", "string", func(o *flowcontrolv1.FlowSchema) any {
			for _, c := range o.Status.Conditions {
				if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
					return string(c.Status)
				}
			}
			return "?"
		}),
	}
}

func priorityLevelColumns() []column {
	type level = flowcontrolv1.PriorityLevelConfiguration
	limited := func(f func(*flowcontrolv1.LimitedPriorityLevelConfiguration) *int32) func(*level) any {
		return func(o *level) any {
			if o.Spec.Limited == nil {
				return none
			}
			return or(f(o.Spec.Limited), none)
		}
	}
	queued := func(f func(*flowcontrolv1.QueuingConfiguration) *int32) func(*level) any {
		return limited(func(l *flowcontrolv1.LimitedPriorityLevelConfiguration) *int32 {
			if l.LimitResponse.Queuing == nil {
				return nil
			}
			return f(l.LimitResponse.Queuing)
		})
	}
	return []column{
		col("Type", "string", func(o *level) any { return string(o.Spec.Type) }),
		col("NominalConcurrencyShares", "string", limited(func(l *flowcontrolv1.LimitedPriorityLevelConfiguration) *int32 { return l.NominalConcurrencyShares })),
		col("Queues", "string", queued(func(q *flowcontrolv1.QueuingConfiguration) *int32 { return &q.Queues })),
		col("HandSize", "string", queued(func(q *flowcontrolv1.QueuingConfiguration) *int32 { return &q.HandSize })),
		col("QueueLengthLimit", "string", queued(func(q *flowcontrolv1.QueuingConfiguration) *int32 { return &q.QueueLengthLimit })),
	}
}

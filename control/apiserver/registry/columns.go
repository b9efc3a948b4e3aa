package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

const (
	none    = "<none>"
	unknown = "<unknown>"
	unset   = "<unset>"
)

// since is how long ago something was, as kubectl has it.
func since(t metav1.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(time.Since(t.Time))
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

func listed(all []string) string { return orNone(strings.Join(all, ",")) }

func or[T any](p *T, otherwise any) any {
	if p == nil {
		return otherwise
	}
	return fmt.Sprint(*p)
}

// created is the creation as a time: kinds that kubectl prints so.
func created(o runtime.Object) string {
	return metaOf(o).GetCreationTimestamp().UTC().Format(time.RFC3339)
}

func createdColumns() []column {
	return []column{createdAt("Created At"), noAge()}
}

func createdAt(name string) column {
	return column{metav1.TableColumnDefinition{Name: name, Type: "date", Description: "Creation of the object."}, func(o runtime.Object) any { return created(o) }}
}

// ageless is the type of the column that says that there is no age.
const ageless = "none"

// noAge stands for the age where a kind has its creation instead, or nothing.
func noAge() column {
	return column{TableColumnDefinition: metav1.TableColumnDefinition{Type: ageless}}
}

// ageHere is where the age stands that does not come last.
func ageHere() column { return column{} }

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

// own makes a column of kinds that have no one type.
func own(name, kind string, value func(runtime.Object) any) column {
	return column{metav1.TableColumnDefinition{Name: name, Type: kind, Description: name + " of the object."}, value}
}

func configMapColumns() []column {
	return []column{col("Data", "string", func(o *corev1.ConfigMap) any { return int64(len(o.Data) + len(o.BinaryData)) })}
}

func secretColumns() []column {
	return []column{
		col("Type", "string", func(o *corev1.Secret) any { return string(o.Type) }),
		col("Data", "string", func(o *corev1.Secret) any { return int64(len(o.Data)) }),
	}
}

func namespaceColumns() []column {
	return []column{col("Status", "string", func(o *corev1.Namespace) any { return string(o.Status.Phase) })}
}

func quotaColumns() []column {
	usage := func(limits bool) func(*corev1.ResourceQuota) any {
		return func(o *corev1.ResourceQuota) any {
			var all []string
			for _, name := range slices.Sorted(maps.Keys(o.Status.Hard)) {
				if strings.HasPrefix(string(name), "limits.") == limits {
					hard, used := o.Status.Hard[name], o.Status.Used[name]
					all = append(all, fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String()))
				}
			}
			return strings.Join(all, ", ")
		}
	}
	return []column{col("Request", "string", usage(false)), col("Limit", "string", usage(true))}
}

func eventColumns() []column {
	last := func(o *corev1.Event) any {
		switch {
		case o.Series != nil:
			return since(metav1.Time(o.Series.LastObservedTime))
		case !o.LastTimestamp.IsZero():
			return since(o.LastTimestamp)
		case !o.FirstTimestamp.IsZero():
			return since(o.FirstTimestamp)
		}
		return since(metav1.Time(o.EventTime))
	}
	first := func(o *corev1.Event) any {
		if !o.FirstTimestamp.IsZero() {
			return since(o.FirstTimestamp)
		}
		return since(metav1.Time(o.EventTime))
	}
	return []column{
		col("Last Seen", "string", last),
		col("Type", "string", func(o *corev1.Event) any { return o.Type }),
		col("Reason", "string", func(o *corev1.Event) any { return o.Reason }),
		col("Object", "string", func(o *corev1.Event) any {
			return strings.ToLower(o.InvolvedObject.Kind) + "/" + o.InvolvedObject.Name
		}),
		wide(col("Subobject", "string", func(o *corev1.Event) any { return o.InvolvedObject.FieldPath })),
		wide(col("Source", "string", func(o *corev1.Event) any {
			if o.Source.Component == "" {
				return strings.Trim(o.ReportingController+", "+o.ReportingInstance, ", ")
			}
			return strings.Trim(o.Source.Component+", "+o.Source.Host, ", ")
		})),
		col("Message", "string", func(o *corev1.Event) any { return strings.TrimSpace(o.Message) }),
		wide(col("First Seen", "string", first)),
		wide(col("Count", "string", func(o *corev1.Event) any {
			if o.Series != nil {
				return int64(o.Series.Count)
			}
			return int64(max(o.Count, 1))
		})),
		wide(own("Name", "string", func(o runtime.Object) any { return metaOf(o).GetName() })),
		noAge(),
	}
}

func leaseColumns() []column {
	return []column{col("Holder", "string", func(o *coordinationv1.Lease) any { return or(o.Spec.HolderIdentity, "") })}
}

func runtimeClassColumns() []column {
	return []column{col("Handler", "string", func(o *nodev1.RuntimeClass) any { return o.Handler })}
}

func priorityClassColumns() []column {
	return []column{
		col("Value", "integer", func(o *schedulingv1.PriorityClass) any { return int64(o.Value) }),
		col("Global-Default", "boolean", func(o *schedulingv1.PriorityClass) any { return o.GlobalDefault }),
		ageHere(),
		col("PreemptionPolicy", "string", func(o *schedulingv1.PriorityClass) any { return or(o.PreemptionPolicy, "") }),
	}
}

func budgetColumns() []column {
	return []column{
		col("Min Available", "string", func(o *policyv1.PodDisruptionBudget) any {
			if o.Spec.MinAvailable == nil {
				return "N/A"
			}
			return o.Spec.MinAvailable.String()
		}),
		col("Max Unavailable", "string", func(o *policyv1.PodDisruptionBudget) any {
			if o.Spec.MaxUnavailable == nil {
				return "N/A"
			}
			return o.Spec.MaxUnavailable.String()
		}),
		col("Allowed Disruptions", "integer", func(o *policyv1.PodDisruptionBudget) any { return int64(o.Status.DisruptionsAllowed) }),
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

func claimColumns() []column {
	return []column{col("State", "string", func(o *resourcev1.ResourceClaim) any {
		var all []string
		if o.DeletionTimestamp != nil {
			all = append(all, "deleted")
		}
		if o.Status.Allocation == nil {
			return strings.Join(append(all, "pending"), ",")
		}
		all = append(all, "allocated")
		if len(o.Status.ReservedFor) > 0 {
			all = append(all, "reserved")
		}
		return strings.Join(all, ",")
	})}
}

func resourceSliceColumns() []column {
	return []column{
		col("Node", "string", func(o *resourcev1.ResourceSlice) any { return or(o.Spec.NodeName, unset) }),
		col("Driver", "string", func(o *resourcev1.ResourceSlice) any { return o.Spec.Driver }),
		col("Pool", "string", func(o *resourcev1.ResourceSlice) any { return o.Spec.Pool.Name }),
	}
}

package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
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

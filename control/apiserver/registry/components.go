package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// componentREST tells what the control plane is made of and whether it is well. Its only component is etcd: scheduler
// and controllers tell of themselves.
type componentREST struct {
	rest.TableConvertor
	healthy func(context.Context) error
}

func newComponents(healthy func(context.Context) error) *componentREST {
	columns := []column{
		col("Status", "string", func(o *corev1.ComponentStatus) any {
			if o.Conditions[0].Status == corev1.ConditionTrue {
				return "Healthy"
			}
			return "Unhealthy"
		}),
		col("Message", "string", func(o *corev1.ComponentStatus) any { return o.Conditions[0].Message }),
		col("Error", "string", func(o *corev1.ComponentStatus) any { return o.Conditions[0].Error }),
		noAge(),
	}
	return &componentREST{newTable(corev1.Resource("componentstatuses"), columns, nil), healthy}
}

// New implements [rest.Storage].
func (*componentREST) New() runtime.Object { return &corev1.ComponentStatus{} }

// NewList implements [rest.Lister].
func (*componentREST) NewList() runtime.Object { return &corev1.ComponentStatusList{} }

// Destroy implements [rest.Storage].
func (*componentREST) Destroy() {}

// NamespaceScoped implements [rest.Scoper].
func (*componentREST) NamespaceScoped() bool { return false }

// ShortNames implements [rest.ShortNamesProvider].
func (*componentREST) ShortNames() []string { return []string{"cs"} }

// GetSingularName implements [rest.SingularNameProvider].
func (*componentREST) GetSingularName() string { return "componentstatus" }

// List implements [rest.Lister].
func (c *componentREST) List(ctx context.Context, _ *internalversion.ListOptions) (runtime.Object, error) {
	return &corev1.ComponentStatusList{Items: []corev1.ComponentStatus{*c.etcd(ctx)}}, nil
}

// Get implements [rest.Getter].
func (c *componentREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if is := c.etcd(ctx); is.Name == name {
		return is, nil
	}
	return nil, errors.NewNotFound(corev1.Resource("componentstatuses"), name)
}

func (c *componentREST) etcd(ctx context.Context) *corev1.ComponentStatus {
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err := c.healthy(ctx); err != nil {
		condition.Status, condition.Message, condition.Error = corev1.ConditionFalse, "", err.Error()
	}
	return &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: "etcd-0"}, Conditions: []corev1.ComponentCondition{condition}}
}

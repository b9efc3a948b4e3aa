package metrics

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// table is how kubectl get shows what is told.
func table(o runtime.Object) (*metav1.Table, error) {
	t := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name"}, {Name: "CPU", Type: "string"}, {Name: "Memory", Type: "string"}, {Name: "Window", Type: "string"},
	}}
	row := func(o runtime.Object, name string, used corev1.ResourceList, window metav1.Duration) {
		t.Rows = append(t.Rows, metav1.TableRow{
			Cells: []any{name, used.Cpu().String(), used.Memory().String(), window.Duration.String()}, Object: runtime.RawExtension{Object: o},
		})
	}
	switch o := o.(type) {
	case *v1beta1.NodeMetrics:
		row(o, o.Name, o.Usage, o.Window)
	case *v1beta1.NodeMetricsList:
		for i := range o.Items {
			row(&o.Items[i], o.Items[i].Name, o.Items[i].Usage, o.Items[i].Window)
		}
	case *v1beta1.PodMetrics:
		row(o, o.Name, sum(o), o.Window)
	case *v1beta1.PodMetricsList:
		for i := range o.Items {
			row(&o.Items[i], o.Items[i].Name, sum(&o.Items[i]), o.Items[i].Window)
		}
	default:
		return nil, fmt.Errorf("show %T: it is no metrics", o)
	}
	return t, nil
}

func sum(m *v1beta1.PodMetrics) corev1.ResourceList {
	all := corev1.ResourceList{}
	for _, c := range m.Containers {
		for name, q := range c.Usage {
			has := all[name]
			has.Add(q)
			all[name] = has
		}
	}
	return all
}

package registry

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// column is one of a table that clients print. Its value is of the object's own type.
type column struct {
	metav1.TableColumnDefinition
	value func(runtime.Object) any
}

// col makes a column. Wide ones are shown when more is asked for.
func col[T any, P interface {
	*T
	runtime.Object
}](name, kind string, value func(P) any) column {
	return column{
		metav1.TableColumnDefinition{Name: name, Type: kind, Description: name + " of the object."},
		func(o runtime.Object) any { return value(o.(P)) },
	}
}

// wide has a column shown only when more is asked for.
func wide(c column) column {
	c.Priority = 1
	return c
}

// named has a column tell of a name.
func named(c column) column {
	c.Format = "name"
	return c
}

// table implements [rest.TableConvertor] with a row's columns between the name and the age.
type table struct {
	resource schema.GroupResource
	columns  []column
	order    func(a, b runtime.Object) int
	defs     []metav1.TableColumnDefinition
}

func newTable(r schema.GroupResource, columns []column, order func(a, b runtime.Object) int) rest.TableConvertor {
	t := table{resource: r, order: order}
	docs := metav1.ObjectMeta{}.SwaggerDoc()
	name := metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: docs["name"]}
	age := metav1.TableColumnDefinition{Name: "Age", Type: "string", Description: docs["creationTimestamp"]}
	if !slices.ContainsFunc(columns, func(c column) bool { return c.Name == "Name" }) {
		t.columns = append(t.columns, column{name, func(o runtime.Object) any { return metaOf(o).GetName() }})
	}
	// The age comes before the first wide column, unless the kind has a place of its own for it, or none.
	at := slices.IndexFunc(columns, func(c column) bool { return c.Priority > 0 })
	if at < 0 {
		at = len(columns)
	}
	if i := slices.IndexFunc(columns, func(c column) bool { return c.value == nil }); i >= 0 {
		at = i
	}
	for i, c := range append(slices.Clone(columns), column{}) {
		if i == at && c.Type != ageless {
			t.columns = append(t.columns, column{age, func(o runtime.Object) any { return since(metaOf(o).GetCreationTimestamp()) }})
		}
		if c.value != nil {
			if c.Name == "Name" {
				c.Format = "name"
			}
			t.columns = append(t.columns, c)
		}
	}
	for _, c := range t.columns {
		t.defs = append(t.defs, c.TableColumnDefinition)
	}
	return t
}

// ConvertToTable implements [rest.TableConvertor].
func (t table) ConvertToTable(_ context.Context, o, options runtime.Object) (*metav1.Table, error) {
	out := &metav1.Table{Rows: []metav1.TableRow{}}
	if m, err := meta.ListAccessor(o); err == nil {
		out.ResourceVersion, out.Continue, out.RemainingItemCount = m.GetResourceVersion(), m.GetContinue(), m.GetRemainingItemCount()
	} else if m, err := meta.CommonAccessor(o); err == nil {
		out.ResourceVersion = m.GetResourceVersion()
	}
	if opt, ok := options.(*metav1.TableOptions); !ok || !opt.NoHeaders {
		out.ColumnDefinitions = t.defs
	}
	if !meta.IsListType(o) {
		return out, t.row(out, o)
	}
	if err := meta.EachListItem(o, func(item runtime.Object) error { return t.row(out, item) }); err != nil || t.order == nil {
		return out, err
	}
	slices.SortStableFunc(out.Rows, func(a, b metav1.TableRow) int { return t.order(a.Object.Object, b.Object.Object) })
	return out, nil
}

func (t table) row(out *metav1.Table, o runtime.Object) (err error) {
	if _, ok := o.(metav1.Object); !ok {
		return errors.NewBadRequest(fmt.Sprintf("%s as a table: a %s has no metadata", t.resource, reflect.TypeOf(o)))
	}
	cells := make([]any, len(t.columns))
	for i, c := range t.columns {
		cells[i] = c.value(o)
	}
	out.Rows = append(out.Rows, metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: o}})
	return nil
}

// Package rules is the table of what an API server does to objects of each kind before it stores them: the defaults it
// fills in, and the rules it holds them to when they are made and when they are changed.
package rules

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Rules are those of one kind. They change nothing but what Default is given, and want objects that have their
// defaults, of the Go type that k8s.io/api has for the kind.
type Rules struct {
	// Default fills in what is missing. Doing it twice changes nothing.
	Default func(runtime.Object)
	// ValidateCreate tells what is wrong with a new object.
	ValidateCreate func(runtime.Object) field.ErrorList
	// ValidateUpdate tells what is wrong with an object in the place of the old one.
	ValidateUpdate func(obj, old runtime.Object) field.ErrorList
}

// For finds the rules of a kind.
func For(gvk schema.GroupVersionKind) (Rules, bool) {
	for _, group := range table() {
		if group.version != gvk.GroupVersion() {
			continue
		}
		i := slices.IndexFunc(group.rows, func(r row) bool { return r.kind == gvk.Kind })
		if i >= 0 {
			return group.rows[i].rules, true
		}
	}
	return Rules{}, false
}

// Kinds are those that have rules, in the table's order.
func Kinds() []schema.GroupVersionKind {
	var all []schema.GroupVersionKind
	for _, group := range table() {
		for _, r := range group.rows {
			all = append(all, group.version.WithKind(r.kind))
		}
	}
	return all
}

type group struct {
	version schema.GroupVersion
	rows    []row
}

type row struct {
	kind  string
	rules Rules
}

// of makes a row of functions on the kind's own type. A kind without defaults has nil for them.
func of[T any, P interface {
	*T
	runtime.Object
}](kind string, set func(P), create func(P) field.ErrorList, update func(o, old P) field.ErrorList) row {
	return row{kind, Rules{
		Default: func(o runtime.Object) {
			if set != nil {
				set(o.(P))
			}
		},
		ValidateCreate: func(o runtime.Object) field.ErrorList { return create(o.(P)) },
		ValidateUpdate: func(o, old runtime.Object) field.ErrorList { return update(o.(P), old.(P)) },
	}}
}

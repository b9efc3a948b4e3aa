// Package registry is the resources of the API: one table, a row a resource, and what serves a row's objects from the
// store, its subresources included.
package registry

import (
	"context"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// trait is what a resource has or is, beyond what all are.
type trait uint

const (
	namespaced     trait = 1 << iota
	inAll                // one of those that kubectl calls all
	extension            // one of those that kubectl calls api-extensions
	status               // has a status, which a subresource of that name writes
	counted              // its generation counts changes of what is wanted
	cached               // so many watch it that a cache serves them
	createOnUpdate       // an update makes what is not there
	careful              // an update has to say what it was made from
	reports              // who makes it says its status, too, as a node that registers does
)

// resource is one row of the table.
type resource struct {
	name         string
	object, list runtime.Object
	traits       trait
	short        string
	columns      []column
	order        func(a, b runtime.Object) int   // of a table's rows; nil: by name
	fields       func(runtime.Object) fields.Set // selectable beside name and namespace
	index        string                          // the field by which watchers are told apart
	ttl          uint64                          // seconds that an object lives; 0: for ever
	hooks        hooks
	parts        []part
	scale        *scale
}

// hooks are what a strategy does for one resource alone. They see an object before its rules do.
type hooks struct {
	create func(ctx context.Context, o runtime.Object)
	update func(ctx context.Context, o, old runtime.Object)
}

// part is a subresource that writes some of an object.
type part struct {
	name string
	// prepare puts back in the new object what the subresource does not write.
	prepare func(o, old runtime.Object)
	// validate tells what is wrong; nil: the rules for an update of the whole.
	validate func(o, old runtime.Object) field.ErrorList
	// writes are the fields at the top, by their JSON names, that the subresource may own.
	writes []string
}

func (r *resource) is(t trait) bool { return r.traits&t != 0 }

func (r *resource) kind() string { return reflect.TypeOf(r.object).Elem().Name() }

func (r *resource) new() runtime.Object { return fresh(r.object) }

func (r *resource) newList() runtime.Object { return fresh(r.list) }

func (r *resource) singular() string { return strings.ToLower(r.kind()) }

func fresh(o runtime.Object) runtime.Object {
	return reflect.New(reflect.TypeOf(o).Elem()).Interface().(runtime.Object)
}

// group is a version of a group with its resources.
type group struct {
	version   schema.GroupVersion
	resources []resource
}

// topFields are the fields at the top of a kind's objects by their JSON names, metadata and type left out, with their
// index in the struct.
func topFields(o runtime.Object) map[string]int {
	t := reflect.TypeOf(o).Elem()
	all := map[string]int{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "metadata" {
			all[name] = i
		}
	}
	return all
}

package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Storage is what serves resources, by group, version and the path of the resource or subresource.
type Storage map[schema.GroupVersion]map[string]rest.Storage

func (s Storage) add(gv schema.GroupVersion, path string, r rest.Storage) {
	if s[gv] == nil {
		s[gv] = map[string]rest.Storage{}
	}
	s[gv][path] = r
}

// Groups are the groups of the storage with their versions, in the order that clients are told of.
func (s Storage) Groups() []string {
	groups := map[string]bool{}
	for gv := range s {
		groups[gv.Group] = true
	}
	return slices.Sorted(maps.Keys(groups))
}

// REST serves a resource. The library finds by its methods what a resource can do, which are those of its store: hence
// the store is embedded.
type REST struct {
	*genericregistry.Store
	row *resource
}

// ShortNames are what kubectl takes for the resource's name.
func (r *REST) ShortNames() []string {
	if r.row.short == "" {
		return nil
	}
	return []string{r.row.short}
}

// Categories are the names of several resources at once.
func (r *REST) Categories() []string {
	switch {
	case r.row.is(inAll):
		return []string{"all"}
	case r.row.is(extension):
		return []string{"api-extensions"}
	}
	return nil
}

func newREST(gv schema.GroupVersion, row *resource, scheme *runtime.Scheme, options generic.RESTOptionsGetter) (*REST, error) {
	s := newStrategy(scheme, gv, row)
	if s.rules.ValidateCreate == nil || s.rules.ValidateUpdate == nil {
		return nil, fmt.Errorf("serve %s: its kind has no rules", row.name)
	}
	store := &genericregistry.Store{
		NewFunc: row.new, NewListFunc: row.newList,
		DefaultQualifiedResource:  schema.GroupResource{Group: gv.Group, Resource: row.name},
		SingularQualifiedResource: schema.GroupResource{Group: gv.Group, Resource: row.singular()},
		CreateStrategy:            s, UpdateStrategy: s, DeleteStrategy: s, ResetFieldsStrategy: s,
		TableConvertor: newTable(schema.GroupResource{Group: gv.Group, Resource: row.name}, row.columns, row.order),
	}
	if row.name == "pods" {
		store.DeleteStrategy, store.ReturnDeletedObject = gracefulStrategy{s}, true
	}
	if row.ttl > 0 {
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return row.ttl, nil }
	}
	err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: row.attributes, TriggerFunc: row.triggers()})
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", row.name, err)
	}
	return &REST{store, row}, nil
}

// partREST serves a subresource that writes some of an object.
type partREST struct{ store *genericregistry.Store }

func newPart(r *REST, p part) *partREST {
	main := r.UpdateStrategy.(*strategy)
	s := partStrategy{main, p}
	store := *r.Store
	store.UpdateStrategy, store.ResetFieldsStrategy = s, s
	return &partREST{&store}
}

// New implements [rest.Storage].
func (p *partREST) New() runtime.Object { return p.store.New() }

// Destroy implements [rest.Storage]. The store is that of the resource.
func (p *partREST) Destroy() {}

// Get implements [rest.Getter].
func (p *partREST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return p.store.Get(ctx, name, o)
}

// Update implements [rest.Updater].
func (p *partREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, o *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return p.store.Update(ctx, name, info, create, update, false, o)
}

// GetResetFields implements [rest.ResetFieldsStrategy].
func (p *partREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return p.store.GetResetFields()
}

// ConvertToTable implements [rest.TableConvertor].
func (p *partREST) ConvertToTable(ctx context.Context, o, options runtime.Object) (*metav1.Table, error) {
	return p.store.ConvertToTable(ctx, o, options)
}

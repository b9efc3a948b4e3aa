package registry

import (
	"context"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/berth-node/berth/control/api/rules"
)

// strategy is how a resource's objects are made, changed and deleted. It implements the interfaces that the generic
// registry asks for: [rest.RESTCreateStrategy], [rest.RESTUpdateStrategy], [rest.RESTDeleteStrategy].
type strategy struct {
	typer   runtime.ObjectTyper
	version schema.GroupVersion
	row     *resource
	rules   rules.Rules
}

func newStrategy(typer runtime.ObjectTyper, gv schema.GroupVersion, row *resource) *strategy {
	r, _ := rules.For(gv.WithKind(row.kind()))
	return &strategy{typer, gv, row, r}
}

// ObjectKinds implements [runtime.ObjectTyper].
func (s *strategy) ObjectKinds(o runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return s.typer.ObjectKinds(o)
}

// Recognizes implements [runtime.ObjectTyper].
func (s *strategy) Recognizes(gvk schema.GroupVersionKind) bool { return s.typer.Recognizes(gvk) }

// GenerateName makes a name of what a client wants it to begin with.
func (s *strategy) GenerateName(base string) string {
	return names.SimpleNameGenerator.GenerateName(base)
}

// NamespaceScoped says whether objects are in namespaces.
func (s *strategy) NamespaceScoped() bool { return s.row.is(namespaced) }

// PrepareForCreate takes away what a client does not say of a new object: its status, but for a node's, and its
// generation.
func (s *strategy) PrepareForCreate(ctx context.Context, o runtime.Object) {
	if s.row.is(status) && !s.row.is(reports) {
		statusOf(o).SetZero()
	}
	if s.row.is(counted) {
		metaOf(o).SetGeneration(1)
	}
	if s.row.hooks.create != nil {
		s.row.hooks.create(ctx, o)
	}
}

// Validate holds a new object to its rules.
func (s *strategy) Validate(_ context.Context, o runtime.Object) field.ErrorList {
	return s.rules.ValidateCreate(o)
}

// WarningsOnCreate has none: what is deprecated of a version is told of by the version.
func (s *strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// Canonicalize changes nothing: defaults have been set.
func (s *strategy) Canonicalize(runtime.Object) {}

// AllowCreateOnUpdate says whether an update makes what is not there.
func (s *strategy) AllowCreateOnUpdate(context.Context) bool { return s.row.is(createOnUpdate) }

// AllowUnconditionalUpdate says whether an update may be without the version that it was made from.
func (s *strategy) AllowUnconditionalUpdate(context.Context) bool { return !s.row.is(careful) }

// PrepareForUpdate keeps the status, and counts the change when something else is wanted now.
func (s *strategy) PrepareForUpdate(ctx context.Context, o, old runtime.Object) {
	if s.row.is(status) {
		statusOf(o).Set(statusOf(old))
	}
	if s.row.hooks.update != nil {
		s.row.hooks.update(ctx, o, old)
	}
	if s.row.is(counted) {
		count(o, old)
	}
}

// count makes the generation one more than it was when anything but metadata and status differs.
func count(o, old runtime.Object) {
	generation := metaOf(old).GetGeneration()
	if _, ok := o.(*appsv1.Deployment); ok && !equality.Semantic.DeepEqual(metaOf(o).GetAnnotations(), metaOf(old).GetAnnotations()) {
		metaOf(o).SetGeneration(generation + 1) // it hands its annotations on to what it makes
		return
	}
	now, was := reflect.ValueOf(o).Elem(), reflect.ValueOf(old).Elem()
	for name, i := range topFields(o) {
		if name != "status" && !equality.Semantic.DeepEqual(now.Field(i).Interface(), was.Field(i).Interface()) {
			generation++
			break
		}
	}
	metaOf(o).SetGeneration(generation)
}

// ValidateUpdate holds a change to its rules.
func (s *strategy) ValidateUpdate(_ context.Context, o, old runtime.Object) field.ErrorList {
	return s.rules.ValidateUpdate(o, old)
}

// WarningsOnUpdate has none.
func (s *strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// DefaultGarbageCollectionPolicy is to delete what belongs to what is deleted.
func (s *strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.DeleteDependents
}

// GetResetFields says that nobody owns the status who writes the object.
func (s *strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.row.is(status) {
		return nil
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.version.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// gracefulStrategy is that of objects which stay for a while when they are deleted: pods.
type gracefulStrategy struct{ *strategy }

// CheckGracefulDelete decides how long an object stays. See [rest.RESTGracefulDeleteStrategy].
func (gracefulStrategy) CheckGracefulDelete(_ context.Context, o runtime.Object, options *metav1.DeleteOptions) bool {
	return podGrace(o, options)
}

// partStrategy is that of a subresource.
type partStrategy struct {
	*strategy
	part part
}

// PrepareForUpdate puts back what the subresource does not write.
func (s partStrategy) PrepareForUpdate(_ context.Context, o, old runtime.Object) {
	// Who owns an object decides when it ends, which a status has no say in.
	metaOf(o).SetOwnerReferences(metaOf(old).GetOwnerReferences())
	s.part.prepare(o, old)
	// Who writes a status wants nothing else than before, also where an annotation goes with it: a revision.
	if s.row.is(counted) && s.part.name != "status" {
		count(o, old)
	}
}

// ValidateUpdate holds what is written to its rules.
func (s partStrategy) ValidateUpdate(_ context.Context, o, old runtime.Object) field.ErrorList {
	if s.part.validate != nil {
		return s.part.validate(o, old)
	}
	return s.rules.ValidateUpdate(o, old)
}

// AllowCreateOnUpdate is never: there is no part of what is not there.
func (s partStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

// GetResetFields says that nobody owns the rest of the object who writes a part.
func (s partStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	rest := topFields(s.row.object)
	for _, f := range s.part.writes {
		delete(rest, f)
	}
	set := fieldpath.NewSet()
	for f := range rest {
		set.Insert(fieldpath.MakePathOrDie(f))
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(s.version.String()): set}
}

// statusPart is the subresource that writes an object's status.
func statusPart(validate func(o, old runtime.Object) field.ErrorList) part {
	return part{
		name: "status", writes: []string{"status"}, validate: validate,
		prepare: func(o, old runtime.Object) { keepBut(o, old, "status") },
	}
}

// keepBut puts back all but metadata and one field.
func keepBut(o, old runtime.Object, but string) {
	now, was := reflect.ValueOf(o).Elem(), reflect.ValueOf(old).Elem()
	for name, i := range topFields(o) {
		if name != but {
			now.Field(i).Set(was.Field(i))
		}
	}
}

func statusOf(o runtime.Object) reflect.Value { return reflect.ValueOf(o).Elem().FieldByName("Status") }

// metaOf is the metadata of an object of the table, which all have.
func metaOf(o runtime.Object) metav1.Object {
	return o.(metav1.ObjectMetaAccessor).GetObjectMeta()
}

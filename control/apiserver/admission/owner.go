package admission

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// newOwnerReferences wants who changes the owners of an object to be allowed to delete it, since its owner's end would
// be its own, and who has it block an owner's deletion to be allowed to change the owner's finalizers.
func newOwnerReferences(g given) (checks, error) {
	if g.mapper == nil {
		return checks{}, fmt.Errorf("it has no REST mapper")
	}
	return checks{
		operations: onWrite(), resources: []string{"*"},
		validate: func(ctx context.Context, a admission.Attributes) error {
			o, err := meta.Accessor(a.GetObject())
			if err != nil {
				return nil // what has no metadata has no owners
			}
			var before []metav1.OwnerReference
			if a.GetOperation() == admission.Update {
				old, err := meta.Accessor(a.GetOldObject())
				if err != nil {
					return wrongType(a, a.GetOldObject())
				}
				before = old.GetOwnerReferences()
			}
			if equality.Semantic.DeepEqual(before, o.GetOwnerReferences()) {
				return nil
			}
			// Who creates an object owns it yet; only changes need the right to delete.
			if a.GetOperation() == admission.Update && !may(ctx, g, a, authorizer.AttributesRecord{
				Verb: "delete", Namespace: a.GetNamespace(), APIGroup: a.GetResource().Group, APIVersion: a.GetResource().Version,
				Resource: a.GetResource().Resource, Subresource: a.GetSubresource(), Name: a.GetName(),
			}) {
				return forbid(a, "cannot set an ownerRef on a resource you can't delete")
			}
			for _, ref := range o.GetOwnerReferences() {
				if err := mayBlock(ctx, g, a, before, ref); err != nil {
					return err
				}
			}
			return nil
		},
	}, nil
}

func may(ctx context.Context, g given, a admission.Attributes, r authorizer.AttributesRecord) bool {
	r.User, r.ResourceRequest = a.GetUserInfo(), true
	decision, _, err := g.authorizer.Authorize(ctx, r)
	return err == nil && decision == authorizer.DecisionAllow
}

func mayBlock(ctx context.Context, g given, a admission.Attributes, before []metav1.OwnerReference, ref metav1.OwnerReference) error {
	blocks := func(r metav1.OwnerReference) bool { return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion }
	if !blocks(ref) {
		return nil
	}
	for _, old := range before {
		if old.UID == ref.UID && blocks(old) {
			return nil
		}
	}
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return forbid(a, "cannot set blockOwnerDeletion: %w", err)
	}
	mapping, err := g.mapper.RESTMapping(schema.GroupKind{Group: version.Group, Kind: ref.Kind}, version.Version)
	if err != nil {
		return forbid(a, "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %v Kind %v: %w", ref.APIVersion, ref.Kind, err)
	}
	r := authorizer.AttributesRecord{
		Verb: "update", APIGroup: mapping.Resource.Group, APIVersion: mapping.Resource.Version, Resource: mapping.Resource.Resource,
		Subresource: "finalizers", Name: ref.Name,
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		r.Namespace = a.GetNamespace()
	}
	if !may(ctx, g, a, r) {
		return forbid(a, "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on")
	}
	return nil
}

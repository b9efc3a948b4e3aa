package registry

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// roleREST serves roles and their bindings: what somebody stores of rights, they have.
type roleREST struct {
	*REST
	guard RoleGuard
}

func (r *roleREST) check(ctx context.Context, o runtime.Object) error {
	switch o := o.(type) {
	case *rbacv1.Role:
		return r.guard.CheckRole(ctx, o.Namespace, o.Name, o.Rules, nil)
	case *rbacv1.ClusterRole:
		return r.guard.CheckRole(ctx, "", o.Name, o.Rules, o.AggregationRule)
	case *rbacv1.RoleBinding:
		return r.guard.CheckBinding(ctx, o.Namespace, o.Name, o.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return r.guard.CheckBinding(ctx, "", o.Name, o.RoleRef)
	}
	return nil
}

// Create implements [rest.Creater].
func (r *roleREST) Create(ctx context.Context, o runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	if err := r.check(ctx, o); err != nil {
		return nil, err
	}
	return r.REST.Create(ctx, o, validate, options)
}

// Update implements [rest.Updater].
func (r *roleREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	guarded := rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, o, old runtime.Object) (runtime.Object, error) {
		if old != nil && !metaOf(old).GetCreationTimestamp().Time.IsZero() && sameRights(o, old) {
			return o, nil
		}
		return o, r.check(ctx, o)
	})
	return r.REST.Update(ctx, name, guarded, create, update, force, options)
}

// sameRights says that a change grants nothing.
func sameRights(o, old runtime.Object) bool {
	switch o := o.(type) {
	case *rbacv1.Role:
		return equality.Semantic.DeepEqual(o.Rules, old.(*rbacv1.Role).Rules)
	case *rbacv1.ClusterRole:
		was := old.(*rbacv1.ClusterRole)
		return equality.Semantic.DeepEqual(o.Rules, was.Rules) && equality.Semantic.DeepEqual(o.AggregationRule, was.AggregationRule)
	case *rbacv1.RoleBinding:
		was := old.(*rbacv1.RoleBinding)
		return equality.Semantic.DeepEqual(o.RoleRef, was.RoleRef) && equality.Semantic.DeepEqual(o.Subjects, was.Subjects)
	case *rbacv1.ClusterRoleBinding:
		was := old.(*rbacv1.ClusterRoleBinding)
		return equality.Semantic.DeepEqual(o.RoleRef, was.RoleRef) && equality.Semantic.DeepEqual(o.Subjects, was.Subjects)
	}
	return false
}

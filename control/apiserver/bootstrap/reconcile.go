package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
)

// ensureRoles makes the default roles and bindings, and gives those that are there what they lack. What somebody has
// added to them stays; one that is annotated with autoupdate=false stays as a whole.
func (o Options) ensureRoles(ctx context.Context, client kubernetes.Interface) error {
	roles, err := defaultRoles()
	if err != nil {
		return err
	}
	known, err := readKnown(ctx, client.RbacV1())
	if err != nil {
		return err
	}
	if known.log = o.Log; known.log == nil {
		known.log = slog.New(slog.DiscardHandler)
	}
	var all []error
	for _, r := range roles {
		if err := r.ensure(client.RbacV1(), known); err != nil {
			all = append(all, fmt.Errorf("reconcile role %s: %w", r.name, err))
			continue
		}
		for _, b := range r.bindings {
			if err := r.ensureBinding(client.RbacV1(), known, b); err != nil {
				all = append(all, fmt.Errorf("reconcile binding %s: %w", b.name, err))
			}
		}
	}
	return errors.Join(all...)
}

func (r role) ensure(client rbacclient.RbacV1Interface, known *known) error {
	return again(func() error {
		options := reconciliation.ReconcileRoleOptions{Confirm: true}
		if r.namespace == "" {
			options.Role = reconciliation.ClusterRoleRuleOwner{ClusterRole: r.clusterRole()}
			options.Client = clusterRoles{known.ctx, client.ClusterRoles(), known}
		} else {
			options.Role = reconciliation.RoleRuleOwner{Role: &rbacv1.Role{ObjectMeta: r.meta(r.name), Rules: r.rules}}
			options.Client = namespacedRoles{known.ctx, client.Roles(r.namespace), known}
		}
		result, err := options.Run()
		if err == nil && result.Protected && result.Operation != reconciliation.ReconcileNone {
			known.log.Warn("A default role is left as it is, since its annotation says so", "namespace", r.namespace, "role", r.name)
		}
		return err
	})
}

func (r role) ensureBinding(client rbacclient.RbacV1Interface, known *known, b binding) error {
	return again(func() error {
		options := reconciliation.ReconcileRoleBindingOptions{Confirm: true}
		if r.namespace == "" {
			options.RoleBinding = reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &rbacv1.ClusterRoleBinding{
				ObjectMeta: r.meta(b.name), Subjects: b.subjects, RoleRef: r.ref(),
			}}
			options.Client = clusterBindings{known.ctx, client.ClusterRoleBindings(), known}
		} else {
			options.RoleBinding = reconciliation.RoleBindingAdapter{RoleBinding: &rbacv1.RoleBinding{
				ObjectMeta: r.meta(b.name), Subjects: b.subjects, RoleRef: r.ref(),
			}}
			options.Client = namespacedBindings{known.ctx, client.RoleBindings(r.namespace), known}
		}
		result, err := options.Run()
		if err == nil && result.Protected && result.Operation != reconciliation.ReconcileNone {
			known.log.Warn("A default binding is left as it is, since its annotation says so", "namespace", r.namespace, "binding", b.name)
		}
		return err
	})
}

// known is what the server had when it was asked for all at once: with two hundred objects, asking for each takes a
// good part of the time that a server needs to start. What is asked for a second time, as after a conflict, is read
// anew.
type known struct {
	ctx      context.Context
	log      *slog.Logger
	objects  map[key]metav1.Object
	answered map[key]bool
}

type key struct{ kind, namespace, name string }

func readKnown(ctx context.Context, client rbacclient.RbacV1Interface) (*known, error) {
	k := &known{ctx: ctx, objects: map[key]metav1.Object{}, answered: map[key]bool{}}
	all := metav1.ListOptions{}
	clusterRoles, err := client.ClusterRoles().List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list cluster roles: %w", err)
	}
	for i := range clusterRoles.Items {
		k.objects[key{"ClusterRole", "", clusterRoles.Items[i].Name}] = &clusterRoles.Items[i]
	}
	clusterBindings, err := client.ClusterRoleBindings().List(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list cluster role bindings: %w", err)
	}
	for i := range clusterBindings.Items {
		k.objects[key{"ClusterRoleBinding", "", clusterBindings.Items[i].Name}] = &clusterBindings.Items[i]
	}
	for _, namespace := range systemNamespaces() {
		roles, err := client.Roles(namespace).List(ctx, all)
		if err != nil {
			return nil, fmt.Errorf("list roles of %s: %w", namespace, err)
		}
		for i := range roles.Items {
			k.objects[key{"Role", namespace, roles.Items[i].Name}] = &roles.Items[i]
		}
		bindings, err := client.RoleBindings(namespace).List(ctx, all)
		if err != nil {
			return nil, fmt.Errorf("list role bindings of %s: %w", namespace, err)
		}
		for i := range bindings.Items {
			k.objects[key{"RoleBinding", namespace, bindings.Items[i].Name}] = &bindings.Items[i]
		}
	}
	return k, nil
}

// find answers from what is known the first time, and asks the server after that.
func find[T metav1.Object](k *known, kind, namespace, name string, get func() (T, error)) (T, error) {
	at := key{kind, namespace, name}
	if o, ok := k.objects[at]; ok && !k.answered[at] {
		k.answered[at] = true
		return o.(T), nil
	}
	return get()
}

// The library's own clients have no context, so that nothing bounds how long they wait.

type clusterRoles struct {
	ctx    context.Context
	client rbacclient.ClusterRoleInterface
	known  *known
}

func (c clusterRoles) Get(_, name string) (reconciliation.RuleOwner, error) {
	o, err := find(c.known, "ClusterRole", "", name, func() (*rbacv1.ClusterRole, error) {
		return c.client.Get(c.ctx, name, metav1.GetOptions{})
	})
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: o}, err
}

func (c clusterRoles) Create(r reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	o, err := c.client.Create(c.ctx, r.GetObject().(*rbacv1.ClusterRole), metav1.CreateOptions{FieldManager: fieldManager})
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: o}, err
}

func (c clusterRoles) Update(r reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	o, err := c.client.Update(c.ctx, r.GetObject().(*rbacv1.ClusterRole), metav1.UpdateOptions{FieldManager: fieldManager})
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: o}, err
}

type namespacedRoles struct {
	ctx    context.Context
	client rbacclient.RoleInterface
	known  *known
}

func (c namespacedRoles) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	o, err := find(c.known, "Role", namespace, name, func() (*rbacv1.Role, error) {
		return c.client.Get(c.ctx, name, metav1.GetOptions{})
	})
	return reconciliation.RoleRuleOwner{Role: o}, err
}

func (c namespacedRoles) Create(r reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	o, err := c.client.Create(c.ctx, r.GetObject().(*rbacv1.Role), metav1.CreateOptions{FieldManager: fieldManager})
	return reconciliation.RoleRuleOwner{Role: o}, err
}

func (c namespacedRoles) Update(r reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	o, err := c.client.Update(c.ctx, r.GetObject().(*rbacv1.Role), metav1.UpdateOptions{FieldManager: fieldManager})
	return reconciliation.RoleRuleOwner{Role: o}, err
}

type clusterBindings struct {
	ctx    context.Context
	client rbacclient.ClusterRoleBindingInterface
	known  *known
}

func (c clusterBindings) Get(_, name string) (reconciliation.RoleBinding, error) {
	o, err := find(c.known, "ClusterRoleBinding", "", name, func() (*rbacv1.ClusterRoleBinding, error) {
		return c.client.Get(c.ctx, name, metav1.GetOptions{})
	})
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: o}, err
}

func (c clusterBindings) Delete(_, name string, uid types.UID) error {
	return c.client.Delete(c.ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}

func (c clusterBindings) Create(b reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	o, err := c.client.Create(c.ctx, b.GetObject().(*rbacv1.ClusterRoleBinding), metav1.CreateOptions{FieldManager: fieldManager})
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: o}, err
}

func (c clusterBindings) Update(b reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	o, err := c.client.Update(c.ctx, b.GetObject().(*rbacv1.ClusterRoleBinding), metav1.UpdateOptions{FieldManager: fieldManager})
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: o}, err
}

type namespacedBindings struct {
	ctx    context.Context
	client rbacclient.RoleBindingInterface
	known  *known
}

func (c namespacedBindings) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	o, err := find(c.known, "RoleBinding", namespace, name, func() (*rbacv1.RoleBinding, error) {
		return c.client.Get(c.ctx, name, metav1.GetOptions{})
	})
	return reconciliation.RoleBindingAdapter{RoleBinding: o}, err
}

func (c namespacedBindings) Delete(_, name string, uid types.UID) error {
	return c.client.Delete(c.ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}

func (c namespacedBindings) Create(b reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	o, err := c.client.Create(c.ctx, b.GetObject().(*rbacv1.RoleBinding), metav1.CreateOptions{FieldManager: fieldManager})
	return reconciliation.RoleBindingAdapter{RoleBinding: o}, err
}

func (c namespacedBindings) Update(b reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	o, err := c.client.Update(c.ctx, b.GetObject().(*rbacv1.RoleBinding), metav1.UpdateOptions{FieldManager: fieldManager})
	return reconciliation.RoleBindingAdapter{RoleBinding: o}, err
}

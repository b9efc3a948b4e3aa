package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
			options.Client = objects[*rbacv1.ClusterRole, reconciliation.RuleOwner]{known, "ClusterRole", client.ClusterRoles(), ownerOfCluster}
		} else {
			options.Role = reconciliation.RoleRuleOwner{Role: &rbacv1.Role{ObjectMeta: r.meta(r.name), Rules: r.rules}}
			options.Client = objects[*rbacv1.Role, reconciliation.RuleOwner]{known, "Role", client.Roles(r.namespace), owner}
		}
		result, err := options.Run()
		if err == nil && result.Protected && result.Operation != reconciliation.ReconcileNone {
			known.log.Warn("default role is left as it is, since its annotation says so", "namespace", r.namespace, "role", r.name)
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
			options.Client = objects[*rbacv1.ClusterRoleBinding, reconciliation.RoleBinding]{
				known, "ClusterRoleBinding", client.ClusterRoleBindings(), adapterOfCluster,
			}
		} else {
			options.RoleBinding = reconciliation.RoleBindingAdapter{RoleBinding: &rbacv1.RoleBinding{
				ObjectMeta: r.meta(b.name), Subjects: b.subjects, RoleRef: r.ref(),
			}}
			options.Client = objects[*rbacv1.RoleBinding, reconciliation.RoleBinding]{
				known, "RoleBinding", client.RoleBindings(r.namespace), adapter,
			}
		}
		result, err := options.Run()
		if err == nil && result.Protected && result.Operation != reconciliation.ReconcileNone {
			known.log.Warn("default binding is left as it is, since its annotation says so", "namespace", r.namespace, "binding", b.name)
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

// find answers from what is known the first time, and asks the server after that. What is not among all that there is
// is not there: when somebody makes it meanwhile, to make it fails for that, and it is asked for once more.
func find[T metav1.Object](k *known, kind, namespace, name string, get func() (T, error)) (T, error) {
	at := key{kind, namespace, name}
	if k.answered[at] {
		return get()
	}
	k.answered[at] = true
	if o, ok := k.objects[at]; ok {
		return o.(T), nil
	}
	if namespace != "" && !slices.Contains(systemNamespaces(), namespace) {
		return get() // those are all that were listed
	}
	var none T
	return none, apierrors.NewNotFound(rbacv1.Resource(kind), name)
}

// roleClient is a client of one of the four kinds.
type roleClient[O metav1.Object] interface {
	client[O]
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}

// objects are those of one kind, as the library that reconciles asks for them, wrapped as it has them. Its own clients
// have no context, so that nothing bounds how long they wait.
type objects[O metav1.Object, W interface{ GetObject() runtime.Object }] struct {
	known  *known
	kind   string
	client roleClient[O]
	wrap   func(O) W
}

func (c objects[O, W]) Get(namespace, name string) (W, error) {
	o, err := find(c.known, c.kind, namespace, name, func() (O, error) {
		return c.client.Get(c.known.ctx, name, metav1.GetOptions{})
	})
	return c.wrap(o), err
}

func (c objects[O, W]) Create(w W) (W, error) {
	o, err := c.client.Create(c.known.ctx, w.GetObject().(O), metav1.CreateOptions{FieldManager: fieldManager})
	return c.wrap(o), err
}

func (c objects[O, W]) Update(w W) (W, error) {
	o, err := c.client.Update(c.known.ctx, w.GetObject().(O), metav1.UpdateOptions{FieldManager: fieldManager})
	return c.wrap(o), err
}

func (c objects[O, W]) Delete(_, name string, uid types.UID) error {
	return c.client.Delete(c.known.ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}

func ownerOfCluster(o *rbacv1.ClusterRole) reconciliation.RuleOwner {
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: o}
}

func owner(o *rbacv1.Role) reconciliation.RuleOwner { return reconciliation.RoleRuleOwner{Role: o} }

func adapterOfCluster(o *rbacv1.ClusterRoleBinding) reconciliation.RoleBinding {
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: o}
}

func adapter(o *rbacv1.RoleBinding) reconciliation.RoleBinding {
	return reconciliation.RoleBindingAdapter{RoleBinding: o}
}

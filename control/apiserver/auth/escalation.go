package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// EscalationCheck keeps users from giving, to themselves or others, what they do not have. The API server asks it
// before it stores roles and bindings.
type EscalationCheck struct {
	authorizer authorizer.Authorizer
	rbac       *RBAC
}

// NewEscalationCheck asks an authorizer about the verbs escalate and bind, and RBAC for what users have.
func NewEscalationCheck(a authorizer.Authorizer, r *RBAC) *EscalationCheck {
	return &EscalationCheck{a, r}
}

// CheckRole is about rules that a Role of a namespace, or a ClusterRole, is to have: who stores it must have them all,
// or may escalate. A rule by which the ClusterRole is made of others counts as all that there is. On an update, a role
// whose rules stay as they are may be changed otherwise.
func (e *EscalationCheck) CheckRole(ctx context.Context, namespace, name string, rules []rbacv1.PolicyRule, aggregation *rbacv1.AggregationRule) error {
	u, ok := request.UserFrom(ctx)
	if ok && superuser(u) {
		return nil
	}
	resource := "clusterroles"
	if namespace != "" {
		resource = "roles"
	}
	refuse := func(cause error) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, name, cause)
	}
	if !ok {
		return refuse(errors.New("nobody is known who asks for it"))
	}
	if e.allowed(ctx, u, "escalate", resource, namespace, name) {
		return nil
	}
	if aggregation != nil {
		// Who labels roles chooses what is in it.
		rules = append(slices.Clone(rules),
			rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
			rbacv1.PolicyRule{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}})
	}
	if err := e.covers(u, namespace, rules); err != nil {
		return refuse(err)
	}
	return nil
}

// CheckBinding is about a role that a RoleBinding of a namespace, or a ClusterRoleBinding, is to give: who stores it
// must have all of its rules, or may bind it.
func (e *EscalationCheck) CheckBinding(ctx context.Context, namespace, name string, ref rbacv1.RoleRef) error {
	u, ok := request.UserFrom(ctx)
	if ok && superuser(u) {
		return nil
	}
	resource := "clusterrolebindings"
	if namespace != "" {
		resource = "rolebindings"
	}
	refuse := func(cause error) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, name, cause)
	}
	if !ok {
		return refuse(errors.New("nobody is known who asks for it"))
	}
	to := map[string]string{"Role": "roles", "ClusterRole": "clusterroles"}[ref.Kind]
	if to != "" && e.allowed(ctx, u, "bind", to, namespace, ref.Name) {
		return nil
	}
	rules, err := e.rbac.RulesOf(ref, namespace)
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: to}, ref.Name)
	} else if err != nil {
		return refuse(err)
	}
	if err := e.covers(u, namespace, rules); err != nil {
		return refuse(err)
	}
	return nil
}

// superuser tells of system:masters, as which the server itself asks, too.
func superuser(u user.Info) bool { return slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) }

func (e *EscalationCheck) allowed(ctx context.Context, u user.Info, verb, resource, namespace, name string) bool {
	decision, _, err := e.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: rbacv1.GroupName, APIVersion: "*", Resource: resource, Name: name, Namespace: namespace,
		ResourceRequest: true,
	})
	return err == nil && decision == authorizer.DecisionAllow
}

// covers is nil when a user has all of the rules in the namespace.
func (e *EscalationCheck) covers(u user.Info, namespace string, rules []rbacv1.PolicyRule) error {
	have, unread := e.rbac.Rules(u, namespace)
	covered, missing := validation.Covers(have, rules)
	if covered {
		return nil
	}
	err := fmt.Errorf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held: %s",
		u.GetName(), u.GetGroups(), describe(missing))
	if unread != nil {
		err = fmt.Errorf("%w; resolution errors: %w", err, unread)
	}
	return err
}

// describe tells of a few of the rules: there may be thousands.
func describe(rules []rbacv1.PolicyRule) string {
	const most = 20
	text := ""
	for i, r := range rules {
		if i == most {
			return text + fmt.Sprintf(" and %d more", len(rules)-most)
		}
		text += "\n" + ruleText(r)
	}
	return text
}

func ruleText(r rbacv1.PolicyRule) string {
	if len(r.NonResourceURLs) > 0 {
		return fmt.Sprintf("{NonResourceURLs:%q, Verbs:%q}", r.NonResourceURLs, r.Verbs)
	}
	text := fmt.Sprintf("{APIGroups:%q, Resources:%q", r.APIGroups, r.Resources)
	if len(r.ResourceNames) > 0 {
		text += fmt.Sprintf(", ResourceNames:%q", r.ResourceNames)
	}
	return text + fmt.Sprintf(", Verbs:%q}", r.Verbs)
}

package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
)

// RBAC allows what the roles say that are bound to a user, to its groups or to its service account. It never denies:
// what it does not allow, another authorizer may.
type RBAC struct {
	roles           rbaclisters.RoleLister
	bindings        rbaclisters.RoleBindingLister
	clusterRoles    rbaclisters.ClusterRoleLister
	clusterBindings rbaclisters.ClusterRoleBindingLister
}

// NewRBAC makes it over informers, which it has start with their factory.
func NewRBAC(i rbacinformers.Interface) *RBAC {
	return &RBAC{i.Roles().Lister(), i.RoleBindings().Lister(), i.ClusterRoles().Lister(), i.ClusterRoleBindings().Lister()}
}

// Authorize says no more than that there is no role when there is none: which there are is nothing for who may not read
// them.
func (r *RBAC) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	reason, allowed := "", false
	err := r.visit(a.GetUser(), a.GetNamespace(), func(from source, rules []rbacv1.PolicyRule) bool {
		if RulesAllow(a, rules) {
			reason, allowed = "RBAC: allowed by "+from.String(), true
		}
		return !allowed
	})
	if allowed {
		return authorizer.DecisionAllow, reason, nil
	}
	if err != nil {
		return authorizer.DecisionNoOpinion, fmt.Sprintf("RBAC: %v", err), nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// ConditionsAwareAuthorize is Authorize: there are no conditions.
func (r *RBAC) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(r.Authorize(ctx, a))
}

// EvaluateConditions denies: there are no conditions that could have come from here.
func (r *RBAC) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// Rules are all that a user has in a namespace, with those for all. What could not be read is the error; the rest
// counts.
func (r *RBAC) Rules(u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	var all []rbacv1.PolicyRule
	err := r.visit(u, namespace, func(_ source, rules []rbacv1.PolicyRule) bool {
		all = append(all, rules...)
		return true
	})
	return all, err
}

// RulesFor tells what a user may, for SelfSubjectRulesReview.
func (r *RBAC) RulesFor(_ context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	rules, err := r.Rules(u, namespace)
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	for _, rule := range rules {
		if len(rule.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames,
			})
		}
		if len(rule.NonResourceURLs) > 0 {
			paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs})
		}
	}
	return resources, paths, false, err
}

// source is where rules come from.
type source struct {
	kind, name string
	ref        rbacv1.RoleRef
	subject    rbacv1.Subject
}

func (s source) String() string {
	subject := fmt.Sprintf("%s %q", s.subject.Kind, s.subject.Name)
	if s.subject.Namespace != "" {
		subject = fmt.Sprintf("%s %q", s.subject.Kind, s.subject.Name+"/"+s.subject.Namespace)
	}
	return fmt.Sprintf("%s %q of %s %q to %s", s.kind, s.name, s.ref.Kind, s.ref.Name, subject)
}

// visit shows the rules of all roles that a user has, until it is told that it is enough. A role that is not there is
// an error in the end, and no obstacle to the others.
func (r *RBAC) visit(u user.Info, namespace string, show func(source, []rbacv1.PolicyRule) bool) error {
	if u == nil {
		return errors.New("there is no user")
	}
	var all []error
	clusterBindings, err := r.clusterBindings.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, b := range clusterBindings {
		if subject, ok := bearer(u, b.Subjects, ""); ok {
			rules, err := r.RulesOf(b.RoleRef, "")
			if err != nil {
				all = append(all, err)
			} else if !show(source{"ClusterRoleBinding", b.Name, b.RoleRef, subject}, rules) {
				return nil
			}
		}
	}
	if namespace == "" {
		return errors.Join(all...)
	}
	bindings, err := r.bindings.RoleBindings(namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	for _, b := range bindings {
		if subject, ok := bearer(u, b.Subjects, namespace); ok {
			rules, err := r.RulesOf(b.RoleRef, namespace)
			if err != nil {
				all = append(all, err)
			} else if !show(source{"RoleBinding", b.Name + "/" + namespace, b.RoleRef, subject}, rules) {
				return nil
			}
		}
	}
	return errors.Join(all...)
}

// RulesOf are those of the role that a binding of a namespace, or of all, refers to.
func (r *RBAC) RulesOf(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	switch ref.Kind {
	case "Role":
		role, err := r.roles.Roles(namespace).Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	case "ClusterRole":
		role, err := r.clusterRoles.Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	return nil, apierrors.NewBadRequest(fmt.Sprintf("a binding refers to %q, want a Role or a ClusterRole", ref.Kind))
}

// bearer is the subject by which a user is meant. A service account without a namespace is one of the binding's.
func bearer(u user.Info, subjects []rbacv1.Subject, namespace string) (rbacv1.Subject, bool) {
	i := slices.IndexFunc(subjects, func(s rbacv1.Subject) bool {
		switch s.Kind {
		case rbacv1.UserKind:
			return u.GetName() == s.Name
		case rbacv1.GroupKind:
			return slices.Contains(u.GetGroups(), s.Name)
		case rbacv1.ServiceAccountKind:
			in := s.Namespace
			if in == "" {
				in = namespace
			}
			return in != "" && serviceaccount.MatchesUsername(in, s.Name, u.GetName())
		}
		return false
	})
	if i < 0 {
		return rbacv1.Subject{}, false
	}
	return subjects[i], true
}

// RulesAllow tells whether one of the rules allows a request.
func RulesAllow(a authorizer.Attributes, rules []rbacv1.PolicyRule) bool {
	return slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool { return ruleAllows(a, &rule) })
}

func ruleAllows(a authorizer.Attributes, rule *rbacv1.PolicyRule) bool {
	if !has(rule.Verbs, a.GetVerb()) {
		return false
	}
	if !a.IsResourceRequest() {
		return slices.ContainsFunc(rule.NonResourceURLs, func(path string) bool {
			prefix, below := strings.CutSuffix(path, "*")
			return path == a.GetPath() || below && strings.HasPrefix(a.GetPath(), prefix)
		})
	}
	return has(rule.APIGroups, a.GetAPIGroup()) && hasResource(rule.Resources, a.GetResource(), a.GetSubresource()) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName()))
}

func has(all []string, one string) bool {
	return slices.Contains(all, rbacv1.VerbAll) || slices.Contains(all, one)
}

// hasResource knows "pods", "pods/log", "*/scale" for all resources' scale, and "*" for all, subresources too.
func hasResource(all []string, resource, subresource string) bool {
	if subresource == "" {
		return has(all, resource)
	}
	return has(all, resource+"/"+subresource) || slices.Contains(all, "*/"+subresource)
}

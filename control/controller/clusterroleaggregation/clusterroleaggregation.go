// Package clusterroleaggregation has cluster roles that are made of others say what those say.
package clusterroleaggregation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/client-go/kubernetes"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"

	"github.com/berth-node/berth/control/controller"
)

type aggregator struct {
	client kubernetes.Interface
	roles  rbaclisters.ClusterRoleLister
}

// New makes the controller.
func New(client kubernetes.Interface, roles rbacinformers.ClusterRoleInformer, log *slog.Logger) controller.Controller {
	a := &aggregator{client, roles.Lister()}
	return controller.NewLoop(log, 1, a.sync).Watch(roles.Informer(), a.touched)
}

// touched are the roles that may be made of one.
func (a *aggregator) touched(o any) []string {
	r, ok := o.(*rbacv1.ClusterRole)
	if !ok {
		return nil
	}
	all, err := a.roles.List(labels.Everything())
	if err != nil {
		return nil // a lister of what is in memory does not fail
	}
	var names []string
	for _, one := range all {
		if one.AggregationRule == nil {
			continue
		}
		if is, err := selects(one.AggregationRule, r); one.Name == r.Name || is || err != nil {
			names = append(names, one.Name)
		}
	}
	return names
}

func selects(rule *rbacv1.AggregationRule, r *rbacv1.ClusterRole) (bool, error) {
	for i := range rule.ClusterRoleSelectors {
		s, err := metav1.LabelSelectorAsSelector(&rule.ClusterRoleSelectors[i])
		if err != nil {
			return false, err
		}
		if s.Matches(labels.Set(r.Labels)) {
			return true, nil
		}
	}
	return false, nil
}

func (a *aggregator) sync(ctx context.Context, name string) (time.Duration, error) {
	role, err := a.roles.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find cluster role %s: %w", name, err)
	}
	if role.AggregationRule == nil {
		return 0, nil
	}
	all, err := a.roles.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("list cluster roles: %w", err)
	}
	rules, err := aggregate(role, all)
	if err != nil {
		return 0, fmt.Errorf("read selectors of cluster role %s: %w", name, err)
	}
	if equality.Semantic.DeepEqual(rules, role.Rules) {
		return 0, nil
	}
	// Only the version that was looked at: others write roles, too, and who decides by an old one takes rights away.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": role.ResourceVersion, "uid": role.UID}, "rules": rules})
	if err == nil {
		_, err = a.client.RbacV1().ClusterRoles().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("write cluster role %s: %w", name, err)
	}
	return 0, nil
}

// aggregate are the rules of all roles that a role is made of, each once, in the order of the roles' names, so that the
// same roles make the same rules.
func aggregate(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	of := slices.Clone(all)
	slices.SortFunc(of, func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	rules := []rbacv1.PolicyRule{}
	for _, one := range of {
		if one.Name == role.Name {
			continue
		}
		is, err := selects(role.AggregationRule, one)
		if err != nil {
			return nil, err
		}
		if !is {
			continue
		}
		for _, r := range one.Rules {
			if !slices.ContainsFunc(rules, func(have rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(have, r) }) {
				rules = append(rules, r)
			}
		}
	}
	return rules, nil
}

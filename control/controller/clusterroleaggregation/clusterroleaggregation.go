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
	"github.com/berth-node/berth/control/selector"
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
		if one.AggregationRule != nil && (one.Name == r.Name || selects(one.AggregationRule, r)) {
			names = append(names, one.Name)
		}
	}
	return names
}

func selects(rule *rbacv1.AggregationRule, r *rbacv1.ClusterRole) bool {
	return slices.ContainsFunc(rule.ClusterRoleSelectors, func(s metav1.LabelSelector) bool { return selector.Selects(&s, r.Labels) })
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
		return 0, fmt.Errorf("aggregate cluster role %s: %w", name, err)
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
// same roles make the same rules. Of a role that is made of others itself those of the others count, and not what it
// says: in a circle of roles each would have for ever what any of them ever had, or they would hand it round.
func aggregate(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	left := slices.SortedFunc(slices.Values(all), func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	left = slices.DeleteFunc(left, func(r *rbacv1.ClusterRole) bool { return r.Name == role.Name })
	g := gathering{left: left, has: map[string]bool{}, rules: []rbacv1.PolicyRule{}}
	err := g.add(role)
	return g.rules, err
}

// gathering is what a role is made of, as it is found. There may be a megabyte of rules.
type gathering struct {
	left  []*rbacv1.ClusterRole // that are no part of it yet
	has   map[string]bool       // the rules, as text
	rules []rbacv1.PolicyRule
}

// add adds what a role selects. Each role is added once, also where roles select each other.
func (g *gathering) add(role *rbacv1.ClusterRole) error {
	var of, others []*rbacv1.ClusterRole
	for _, one := range g.left {
		if selects(role.AggregationRule, one) {
			of = append(of, one)
		} else {
			others = append(others, one)
		}
	}
	g.left = others
	for _, one := range of {
		if one.AggregationRule != nil {
			if err := g.add(one); err != nil {
				return err
			}
			continue
		}
		for _, r := range one.Rules {
			key, err := r.Marshal()
			if err != nil {
				return fmt.Errorf("write rule of %s: %w", one.Name, err)
			}
			if !g.has[string(key)] {
				g.has[string(key)] = true
				g.rules = append(g.rules, r)
			}
		}
	}
	return nil
}

package registry

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Options are what the resources need of the rest of the server.
type Options struct {
	Scheme  *runtime.Scheme
	Storage generic.RESTOptionsGetter
	// Etcd has what is no object: who has which port of the nodes.
	Etcd *clientv3.Client
	// Families are those of the ranges of services, the default one first.
	Families      []corev1.IPFamily
	Authenticator authenticator.Request
	Audiences     authenticator.Audiences
	Authorizer    authorizer.Authorizer
	RuleResolver  authorizer.RuleResolver
	// Tokens signs tokens of service accounts.
	Tokens TokenIssuer
	// Roles refuses to store rights that the one who stores them does not have; nil: nobody is refused.
	Roles RoleGuard
	// Nodes reaches the kubelets.
	Nodes NodeDialer
	// Healthy says what is wrong with etcd.
	Healthy func(context.Context) error
	// Serve are versions that are served beside those that always are.
	Serve map[schema.GroupVersion]bool
	Log   *slog.Logger
}

// RoleGuard checks what is granted against what its author has.
type RoleGuard interface {
	CheckRole(ctx context.Context, namespace, name string, rules []rbacv1.PolicyRule, aggregation *rbacv1.AggregationRule) error
	CheckBinding(ctx context.Context, namespace, name string, ref rbacv1.RoleRef) error
}

// Cached says of each stored resource whether so many watch it that a cache serves them.
func Cached() map[schema.GroupResource]bool {
	return stored(func(_ group, r resource) bool { return r.is(cached) })
}

// Objects are an object of each stored resource.
func Objects() map[schema.GroupResource]runtime.Object {
	return stored(func(_ group, r resource) runtime.Object { return r.object })
}

// StorageVersions is the version that objects of each stored resource are written in.
func StorageVersions() map[schema.GroupResource]schema.GroupVersion {
	return stored(func(g group, _ resource) schema.GroupVersion { return g.version })
}

// stored is something of each stored resource.
func stored[T any](of func(group, resource) T) map[schema.GroupResource]T {
	all := map[schema.GroupResource]T{}
	for _, g := range rows() {
		for _, r := range g.resources {
			all[schema.GroupResource{Group: g.version.Group, Resource: r.name}] = of(g, r)
		}
	}
	return all
}

// Build makes what serves all resources, and the repair of what services are given.
func Build(o Options) (Storage, *Repair, error) {
	s := Storage{}
	mains := map[string]*REST{}
	for _, g := range rows() {
		if slices.Contains(OnRequest(), g.version) && !o.Serve[g.version] {
			continue
		}
		for i := range g.resources {
			row := &g.resources[i]
			if row.name == "pods" && !o.Serve[schedulingv1beta1.SchemeGroupVersion] {
				row.hooks.create = createPodWithout
			}
			r, err := newREST(g.version, row, o.Scheme, o.Storage)
			if err != nil {
				return nil, nil, err
			}
			if err := addSelectors(o.Scheme, g.version.WithKind(row.kind()), row); err != nil {
				return nil, nil, fmt.Errorf("serve %s: %w", row.name, err)
			}
			mains[row.name] = r
			s.install(g.version, r)
		}
	}
	if err := s.aliases(o.Scheme, mains); err != nil {
		return nil, nil, err
	}
	given := &services{
		ips: &addresses{mains["ipaddresses"], mains["servicecidrs"], o.Etcd}, ports: &ports{o.Etcd}, families: o.Families, log: o.Log,
	}
	given.install(mains["services"])
	s.special(o, mains)
	return s, &Repair{services: given, all: mains["services"]}, nil
}

// install adds a resource with the subresources that its row tells of.
func (s Storage) install(gv schema.GroupVersion, r *REST) {
	name := r.row.name
	s.add(gv, name, r)
	parts := r.row.parts
	if r.row.is(status) && !hasPart(parts, "status") {
		parts = append(slices.Clip(parts), statusPart(nil))
	}
	for _, p := range parts {
		s.add(gv, name+"/"+p.name, newPart(r, p))
	}
	if r.row.scale != nil {
		s.add(gv, name+"/scale", scaleREST{r, gv})
	}
}

func hasPart(parts []part, name string) bool {
	for _, p := range parts {
		if p.name == name {
			return true
		}
	}
	return false
}

// aliases adds resources that are served in a second version, or group, from the same storage.
func (s Storage) aliases(scheme *runtime.Scheme, mains map[string]*REST) error {
	hpa, events := mains["horizontalpodautoscalers"], mains["events"]
	s.install(autoscalingv1.SchemeGroupVersion, hpa)
	s.install(eventsv1.SchemeGroupVersion, events)
	for _, alias := range []struct {
		gv  schema.GroupVersion
		row *resource
	}{{autoscalingv1.SchemeGroupVersion, hpa.row}, {eventsv1.SchemeGroupVersion, events.row}} {
		if err := addSelectors(scheme, alias.gv.WithKind(alias.row.kind()), alias.row); err != nil {
			return fmt.Errorf("serve %s: %w", alias.row.name, err)
		}
	}
	return nil
}

// special adds what no row can tell.
func (s Storage) special(o Options, mains map[string]*REST) {
	core, pods := corev1.SchemeGroupVersion, mains["pods"]
	namespaces := newNamespaces(mains["namespaces"])
	s.add(core, "namespaces", namespaces)
	s.add(core, "namespaces/status", newPart(mains["namespaces"], statusPart(nil)))
	s.add(core, "namespaces/finalize", newFinalize(mains["namespaces"]))
	s.add(core, "pods/binding", bindingREST{pods})
	s.add(core, "componentstatuses", newComponents(o.Healthy))
	s.add(core, "bindings", bindingsREST{bindingREST{pods}})
	budgets := mains["poddisruptionbudgets"]
	budgetStatus := s[policyv1.SchemeGroupVersion]["poddisruptionbudgets/status"].(*partREST)
	s.add(core, "pods/eviction", evictionREST{pods, budgets, budgetStatus})
	for path, r := range connections(pods, mains["services"], mains["endpointslices"], mains["nodes"], o.Nodes) {
		s.add(core, path, r)
	}
	if o.Tokens != nil {
		s.add(core, "serviceaccounts/token", &tokenREST{mains["serviceaccounts"], pods, mains["secrets"], mains["nodes"], o.Tokens, o.Audiences})
	}
	for gv, all := range reviews(o) {
		for path, r := range all {
			s.add(gv, path, r)
		}
	}
	if o.Roles != nil {
		for _, name := range []string{"roles", "clusterroles", "rolebindings", "clusterrolebindings"} {
			s.add(rbacv1.SchemeGroupVersion, name, &roleREST{mains[name], o.Roles})
		}
	}
}

var _ rest.StandardStorage = (*REST)(nil)

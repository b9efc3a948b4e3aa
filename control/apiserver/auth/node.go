package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-node/berth/control/apiserver/bootstrap"
)

const nodeUser = "system:node:"

// NodeOf is the node that a user is, if it is one: a member of system:nodes by the name of system:node:NAME. A member
// of another name is a node that nobody can tell.
func NodeOf(u user.Info) (name string, is bool) {
	if u == nil || !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return "", false
	}
	name, named := strings.CutPrefix(u.GetName(), nodeUser)
	if !named {
		return "", false
	}
	return name, true
}

// nodeAuthorizer allows nodes what kubelets do: to read what pods of theirs need, and to write what is theirs. What of
// it depends on the object itself is up to admission (NodeRestriction).
type nodeAuthorizer struct {
	index *nodeIndex
	rules []rbacv1.PolicyRule
}

func newNodeAuthorizer(i informers.SharedInformerFactory, client kubernetes.Interface) (*nodeAuthorizer, error) {
	index, err := newNodeIndex(i, client)
	if err != nil {
		return nil, err
	}
	rules, err := bootstrap.NodeRules()
	if err != nil {
		return nil, err
	}
	return &nodeAuthorizer{index, rules}, nil
}

// Authorize has no opinion of what is not a node.
func (n *nodeAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	node, is := NodeOf(a.GetUser())
	if !is || node == "" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	why := n.refusal(ctx, node, a)
	if why == nil {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, why.Error(), nil
}

// ConditionsAwareAuthorize is Authorize: there are no conditions.
func (n *nodeAuthorizer) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(n.Authorize(ctx, a))
}

// EvaluateConditions denies: there are no conditions that could have come from here.
func (n *nodeAuthorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor is not complete for a node: what it may read depends on its pods.
func (n *nodeAuthorizer) RulesFor(_ context.Context, u user.Info, _ string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if _, is := NodeOf(u); is {
		return nil, nil, true, errors.New("what a node may read depends on its pods, and is not told")
	}
	return nil, nil, false, nil
}

// refusal is why a node may not, or nil.
func (n *nodeAuthorizer) refusal(ctx context.Context, node string, a authorizer.Attributes) error {
	if !a.IsResourceRequest() {
		return n.static(a)
	}
	resource := a.GetResource()
	if a.GetAPIGroup() != "" {
		resource += "." + a.GetAPIGroup()
	}
	sub := a.GetSubresource()
	switch resource {
	case "secrets", "configmaps":
		return n.related(ctx, node, a, sub == "" && a.GetNamespace() != "", "get", "list", "watch")
	case "persistentvolumeclaims":
		if sub == "status" {
			return n.related(ctx, node, a, true, "update", "patch")
		}
		return n.related(ctx, node, a, sub == "", "get")
	case "persistentvolumes", "resourceclaims.resource.k8s.io", "volumeattachments.storage.k8s.io":
		return n.related(ctx, node, a, sub == "", "get")
	case "serviceaccounts":
		if sub == "token" {
			return n.related(ctx, node, a, true, "create")
		}
		return n.related(ctx, node, a, sub == "", "get")
	case "leases.coordination.k8s.io":
		return own(node, a, sub == "" && a.GetNamespace() == corev1.NamespaceNodeLease)
	case "csinodes.storage.k8s.io":
		return own(node, a, sub == "")
	case "resourceslices.resource.k8s.io":
		return n.resourceSlice(ctx, node, a)
	case "podcertificaterequests.certificates.k8s.io":
		return n.certificateRequest(ctx, node, a)
	case "nodes":
		return nodeObject(node, a)
	case "pods":
		return n.pod(ctx, node, a)
	}
	return n.static(a)
}

// static is what all nodes may alike.
func (n *nodeAuthorizer) static(a authorizer.Attributes) error {
	if RulesAllow(a, n.rules) {
		return nil
	}
	return errors.New("no node may do this")
}

// related is about one object that pods of the node must need.
func (n *nodeAuthorizer) related(ctx context.Context, node string, a authorizer.Attributes, form bool, verbs ...string) error {
	if !form || !slices.Contains(verbs, a.GetVerb()) {
		return fmt.Errorf("a node can only %s such an object", strings.Join(verbs, ", "))
	}
	if a.GetName() == "" {
		return errors.New("a node can only ask for one such object by its name")
	}
	if !n.index.needs(ctx, node, a.GetResource(), a.GetNamespace(), a.GetName()) {
		return fmt.Errorf("no relationship found between node '%s' and this object", node)
	}
	return nil
}

// own is about an object by the name of the node. The name of one that is created is nothing that a request tells:
// admission looks at it.
func own(node string, a authorizer.Attributes, form bool) error {
	if !form || !slices.Contains([]string{"get", "create", "update", "patch", "delete"}, a.GetVerb()) {
		return errors.New("a node can only get, create, update, patch or delete its own")
	}
	if a.GetVerb() != "create" && a.GetName() != node {
		return errors.New("a node can only access the one by its own name")
	}
	return nil
}

// selects tells whether a request is about objects of the node only.
func selects(a authorizer.Attributes, field, node string) bool {
	all, err := a.GetFieldSelector()
	if err != nil {
		return false
	}
	for _, r := range all {
		if r.Field == field && (r.Operator == selection.Equals || r.Operator == selection.DoubleEquals) && r.Value == node {
			return true
		}
	}
	return false
}

func (n *nodeAuthorizer) resourceSlice(ctx context.Context, node string, a authorizer.Attributes) error {
	if a.GetSubresource() != "" {
		return errors.New("a node cannot access a subresource of this")
	}
	switch a.GetVerb() {
	case "create": // admission looks at whose it is
		return nil
	case "get", "update", "patch", "delete":
		return n.related(ctx, node, a, true, a.GetVerb())
	case "list", "watch", "deletecollection":
		if selects(a, "spec.nodeName", node) {
			return nil
		}
		return errors.New("can only list/watch/deletecollection resourceslices with nodeName field selector")
	}
	return errors.New("a node cannot do this with resource slices")
}

func (n *nodeAuthorizer) certificateRequest(ctx context.Context, node string, a authorizer.Attributes) error {
	if a.GetSubresource() != "" {
		return errors.New("a node cannot access a subresource of this")
	}
	switch a.GetVerb() {
	case "create": // admission looks at whose it is
		return nil
	case "get":
		return n.related(ctx, node, a, true, "get")
	case "list", "watch":
		if selects(a, "spec.nodeName", node) {
			return nil
		}
		return errors.New("can only list/watch podcertificaterequests with nodeName field selector")
	}
	return errors.New("a node cannot do this with certificate requests of pods")
}

func nodeObject(node string, a authorizer.Attributes) error {
	switch a.GetSubresource() + " " + a.GetVerb() {
	case " create", " update", " patch", "status update", "status patch": // admission looks at which node it is
		return nil
	case " get", " list", " watch":
		if a.GetName() == node {
			return nil
		}
		return fmt.Errorf("node '%s' cannot read '%s', only its own Node object", node, a.GetName())
	}
	return errors.New("a node cannot do this with nodes")
}

func (n *nodeAuthorizer) pod(ctx context.Context, node string, a authorizer.Attributes) error {
	switch a.GetSubresource() + " " + a.GetVerb() {
	case " create", " delete", "status update", "status patch", "eviction create": // admission looks at whose pod it is
		return nil
	case " get":
		return n.related(ctx, node, a, true, "get")
	case " list", " watch":
		if selects(a, "spec.nodeName", node) {
			return nil
		}
		if a.GetName() != "" {
			return n.related(ctx, node, a, true, "list", "watch")
		}
		return errors.New("can only list/watch pods with spec.nodeName field selector")
	}
	return errors.New("a node cannot do this with pods")
}

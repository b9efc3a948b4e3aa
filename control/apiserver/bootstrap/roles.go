package bootstrap

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The default roles of Kubernetes and who has them: data/users.txt says how its lines are read.
//
//go:embed data/*.txt
var data embed.FS

const aggregate = "rbac.authorization.k8s.io/aggregate-to-"

// role is a role of one namespace, or of all if it has none, and its bindings.
type role struct {
	namespace, name string
	partOf, madeOf  []string
	rules           []rbacv1.PolicyRule
	bindings        []binding
}

type binding struct {
	name     string
	subjects []rbacv1.Subject
}

// defaultRoles reads the roles that come with berth.
func defaultRoles() ([]role, error) {
	var all []role
	for _, file := range []string{"data/users.txt", "data/controllers.txt", "data/namespaced.txt"} {
		text, err := data.ReadFile(file)
		if err != nil {
			return nil, err
		}
		roles, err := parseRoles(string(text))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		all = append(all, roles...)
	}
	return all, nil
}

// parseRoles reads a text of roles.
func parseRoles(text string) ([]role, error) {
	var roles []role
	begun := ""
	for number, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if begun != "" {
			line = begun + line
			begun = ""
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasSuffix(line, ",") {
			begun = line
			continue
		}
		words := strings.Fields(line)
		if words[0] == "role" && len(words) == 2 {
			namespace, name, below := strings.Cut(words[1], "/")
			if !below {
				namespace, name = "", words[1]
			}
			roles = append(roles, role{namespace: namespace, name: name})
			continue
		}
		if len(roles) == 0 {
			return nil, fmt.Errorf("line %d is before any role: %s", number+1, line)
		}
		if err := roles[len(roles)-1].read(words); err != nil {
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
	}
	if begun != "" {
		return nil, fmt.Errorf("the last line goes on: %s", begun)
	}
	return roles, nil
}

// read takes one line of a role.
func (r *role) read(words []string) error {
	switch words[0] {
	case "in":
		r.partOf = append(r.partOf, words[1:]...)
	case "of":
		r.madeOf = append(r.madeOf, words[1:]...)
	case "to":
		return r.bind(r.name, words[1:])
	case "binding":
		if len(words) < 3 {
			return fmt.Errorf("a binding wants a name and subjects: %v", words)
		}
		return r.bind(words[1], words[2:])
	default:
		rule, err := parseRule(words)
		if err != nil {
			return err
		}
		r.rules = append(r.rules, rule)
	}
	return nil
}

// bind adds subjects to the binding of a name.
func (r *role) bind(name string, words []string) error {
	i := slices.IndexFunc(r.bindings, func(b binding) bool { return b.name == name })
	if i < 0 {
		i, r.bindings = len(r.bindings), append(r.bindings, binding{name: name})
	}
	for _, word := range words {
		kind, of, _ := strings.Cut(word, ":")
		s := rbacv1.Subject{APIGroup: rbacv1.GroupName, Name: of}
		switch kind {
		case "user":
			s.Kind = rbacv1.UserKind
		case "group":
			s.Kind = rbacv1.GroupKind
		case "sa":
			namespace, account, found := strings.Cut(of, "/")
			if !found {
				return fmt.Errorf("%s is no sa:NAMESPACE/NAME", word)
			}
			s = rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}
		default:
			return fmt.Errorf("%s is no user:, group: or sa:", word)
		}
		r.bindings[i].subjects = append(r.bindings[i].subjects, s)
	}
	return nil
}

func parseRule(words []string) (rbacv1.PolicyRule, error) {
	if len(words) < 3 || len(words) > 4 {
		return rbacv1.PolicyRule{}, fmt.Errorf("a rule is verbs, groups, resources and maybe names: %v", words)
	}
	rule := rbacv1.PolicyRule{Verbs: verbs(words[0])}
	if words[1] == "urls" {
		rule.NonResourceURLs = strings.Split(words[2], ",")
		return rule, nil
	}
	rule.APIGroups, rule.Resources = strings.Split(words[1], ","), strings.Split(words[2], ",")
	for i, group := range rule.APIGroups {
		if group == "core" {
			rule.APIGroups[i] = ""
		}
	}
	if len(words) == 4 {
		rule.ResourceNames = strings.Split(words[3], ",")
	}
	return rule, nil
}

func verbs(word string) []string {
	var all []string
	for verb := range strings.SplitSeq(word, ",") {
		switch verb {
		case "read":
			all = append(all, "get", "list", "watch")
		case "write":
			all = append(all, "create", "delete", "deletecollection", "patch", "update")
		case "all":
			all = append(all, rbacv1.VerbAll)
		default:
			all = append(all, verb)
		}
	}
	slices.Sort(all)
	return all
}

// meta is what objects of a default role are marked with: the label says whose they are, the annotation that they are
// kept up to date.
func (r role) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:   r.namespace,
		Name:        name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

// clusterRole is the role as an object that holds for all namespaces.
func (r role) clusterRole() *rbacv1.ClusterRole {
	o := &rbacv1.ClusterRole{ObjectMeta: r.meta(r.name), Rules: r.rules}
	for _, key := range r.partOf {
		o.Labels[aggregate+key] = "true"
	}
	for _, key := range r.madeOf {
		if o.AggregationRule == nil {
			o.AggregationRule = &rbacv1.AggregationRule{}
		}
		o.AggregationRule.ClusterRoleSelectors = append(o.AggregationRule.ClusterRoleSelectors,
			metav1.LabelSelector{MatchLabels: map[string]string{aggregate + key: "true"}})
	}
	return o
}

// ref is how bindings refer to the role.
func (r role) ref() rbacv1.RoleRef {
	kind := "ClusterRole"
	if r.namespace != "" {
		kind = "Role"
	}
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: r.name}
}

// NodeRules are those of system:node, which the authorizer of nodes narrows to what is a node's own.
func NodeRules() ([]rbacv1.PolicyRule, error) {
	roles, err := defaultRoles()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(roles, func(r role) bool { return r.name == "system:node" })
	if i < 0 {
		return nil, fmt.Errorf("no default role is system:node")
	}
	return roles[i].rules, nil
}

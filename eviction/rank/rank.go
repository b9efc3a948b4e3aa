// Package rank says in which order pods end for want of a resource, and why. It is pure.
package rank

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction/signal"
)

// Pod is a pod with what it has of the starved resource.
type Pod struct {
	UID       types.UID          `json:"uid"`
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	QOS       corev1.PodQOSClass `json:"qosClass"`
	Priority  int32              `json:"priority"`
	// Protected pods are never evicted. By whose rule, its consumer knows.
	Protected bool `json:"protected,omitempty"`
	// Ending pods have been told to end for want of this resource already, and still have of it.
	Ending bool `json:"ending,omitempty"`
	// Grace is how many seconds the pod asks for to end in.
	Grace int64 `json:"graceSeconds"`
	// Known says that Usage was measured.
	Known bool `json:"known"`
	// AtLeast says that it was not measured to its end: the pod has that much, and may have more.
	AtLeast bool `json:"atLeast,omitempty"`
	// Usage is in bytes, inodes or processes, and so is Request, which is 0 where nobody can request the resource.
	Usage   int64 `json:"usage"`
	Request int64 `json:"request"`
	// PodLevel says that Request is the pod's own, not the sum of its containers'.
	PodLevel bool `json:"podLevel,omitempty"`
	// Containers are those of the pod, for what is told of it; they have no say in the order.
	Containers []Container `json:"containers,omitempty"`
}

// Container is a container with what it has of the starved resource.
type Container struct {
	Name    string `json:"name"`
	Usage   int64  `json:"usage"`
	Request int64  `json:"request"`
}

// Over is how much more a pod has than it asked for; negative when it has less.
func (p *Pod) Over() int64 { return p.Usage - p.Request }

// exceeds says whether a pod has more than it asked for.
func (p *Pod) exceeds() bool { return p.Usage > p.Request }

// rule tells two pods apart: negative, a goes first.
type rule struct {
	name    ruleName
	compare func(a, b *Pod) int
}

// ruleName says by what two pods are told apart.
type ruleName int

const (
	byFigures  ruleName = iota // one has no figures
	byExceeds                  // one has more than it asked for
	byPriority                 // one is less important
	byOver                     // one has more of it
	byName
)

// rules are those of kubelet for a signal, one after the other until one tells. Nobody can ask for inodes and process
// IDs, so there the priority is the first. Pods without figures come before those that have them wherever figures are
// compared: nobody can say that they keep to what they asked for. Names come last, so that the order is the same at any
// time.
func rules(of signal.Signal) []rule {
	figures := rule{byFigures, func(a, b *Pod) int { return TrueFirst(!a.Known, !b.Known) }}
	exceeds := rule{byExceeds, func(a, b *Pod) int { return TrueFirst(a.Known && a.exceeds(), b.Known && b.exceeds()) }}
	priority := rule{byPriority, func(a, b *Pod) int { return cmp.Compare(a.Priority, b.Priority) }}
	over := rule{byOver, func(a, b *Pod) int {
		if !a.Known || !b.Known {
			return 0
		}
		return cmp.Compare(b.Over(), a.Over())
	}}
	name := rule{byName, func(a, b *Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	}}
	if of.Requestable() {
		return []rule{figures, exceeds, priority, over, name}
	}
	return []rule{priority, figures, over, name}
}

// TrueFirst has those first for whom something holds.
func TrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// decide compares two pods, and says by which rule.
func decide(list []rule, a, b *Pod) (int, ruleName) {
	for _, r := range list {
		if c := r.compare(a, b); c != 0 {
			return c, r.name
		}
	}
	return 0, byName
}

// Order returns the pods that may go for want of what a signal tells of, those first that go first. Protected pods are
// not among them. What it is given stays as it is.
func Order(pods []Pod, of signal.Signal) []Pod {
	out := slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return p.Protected })
	list := rules(of)
	slices.SortFunc(out, func(a, b Pod) int {
		c, _ := decide(list, &a, &b)
		return c
	})
	return out
}

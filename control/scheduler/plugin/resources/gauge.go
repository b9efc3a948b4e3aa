package resources

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// Gauge measures nodes by some resources.
type Gauge struct {
	names  []corev1.ResourceName
	actual bool // what is asked for, not at least the least
}

// NewGauge is a gauge of what specs name; with actual, containers that ask for nothing count nothing.
func NewGauge(specs []configv1.ResourceSpec, actual bool) Gauge {
	g := Gauge{make([]corev1.ResourceName, len(specs)), actual}
	for i := range specs {
		g.names[i] = corev1.ResourceName(specs[i].Name)
	}
	return g
}

// Len is how many resources it measures.
func (g Gauge) Len() int { return len(g.names) }

// Pod is what a pod asks for, resource by resource.
func (g Gauge) Pod(pod *corev1.Pod) Amounts {
	list := cluster.Requests
	if !g.actual {
		list = WantedAtLeast
	}
	all := list(pod)
	a := make(Amounts, len(g.names))
	for i, name := range g.names {
		a[i] = Amount(all, name)
	}
	return a
}

// Node starts the measurement of a node.
func (g Gauge) Node(info fwk.NodeInfo) Node {
	used := info.GetNonZeroRequested()
	if g.actual {
		used = info.GetRequested()
	}
	return Node{g.names, info.GetAllocatable(), info.GetRequested(), used}
}

// Node is one node as a gauge measures it.
type Node struct {
	names       []corev1.ResourceName
	allocatable fwk.Resource
	requested   fwk.Resource
	used        fwk.Resource
}

// At is the i-th resource: how much of it there is, and how much of that is used already. There is nothing of it if it
// does not count: because the node has none, or because the pod does not want what few nodes have.
func (n Node) At(i int, pod Amounts) (allocatable, used int64) {
	name := n.names[i]
	common := Common(name)
	if !common && pod[i] == 0 {
		return 0, 0
	}
	allocatable = Of(n.allocatable, name)
	if allocatable == 0 {
		return 0, 0
	}
	if name == corev1.ResourceCPU || name == corev1.ResourceMemory {
		return allocatable, Of(n.used, name)
	}
	// The least is one of CPU and memory only.
	return allocatable, Of(n.requested, name)
}

// With is how much of a resource is used with a pod's amount of it: no more than a number can say.
func With(used, amount int64) int64 {
	if sum := used + amount; sum >= used {
		return sum
	}
	return math.MaxInt64
}

// Amounts are a pod's, in the order of a gauge.
type Amounts []int64

// Clone is itself: it does not change.
func (a Amounts) Clone() fwk.StateData { return a }

// None says of a pod that it asks for nothing.
func (a Amounts) None() bool {
	for _, n := range a {
		if n != 0 {
			return false
		}
	}
	return true
}

// Defaults are CPU and memory if specs name nothing, and a weight of 1 where none is given.
func Defaults(specs []configv1.ResourceSpec) []configv1.ResourceSpec {
	if len(specs) == 0 {
		specs = []configv1.ResourceSpec{{Name: string(corev1.ResourceCPU)}, {Name: string(corev1.ResourceMemory)}}
	}
	for i := range specs {
		if specs[i].Weight == 0 {
			specs[i].Weight = 1
		}
	}
	return specs
}

// CheckSpecs finds what is wrong with the resources of scores, of which a weight is at most the given.
func CheckSpecs(specs []configv1.ResourceSpec, path *field.Path, heaviest int64) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range specs {
		if seen[specs[i].Name] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), specs[i].Name))
		}
		seen[specs[i].Name] = true
		if w := specs[i].Weight; w < 1 || w > heaviest {
			errs = append(errs, field.Invalid(path.Index(i).Child("weight"), w, weights(heaviest)))
		}
	}
	return errs
}

func weights(heaviest int64) string {
	if heaviest == 1 {
		return "must be 1"
	}
	return "not in valid range (0, 100]"
}

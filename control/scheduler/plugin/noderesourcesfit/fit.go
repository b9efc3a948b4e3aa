// Package noderesourcesfit keeps pods off nodes that have not enough left of what they ask for, and favours nodes by
// how much of it is in use.
package noderesourcesfit

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/plugin"
	"github.com/berth-node/berth/control/scheduler/plugin/resources"
)

// Name is the plugin's in configurations.
const Name = "NodeResourcesFit"

const (
	reasonPods   = "Too many pods"
	reasonPrefix = "Insufficient "
	// mostReasons are told of one node. A pod may ask for tens of thousands of resources, of thousands of nodes.
	mostReasons              = 50
	filterKey   fwk.StateKey = "PreFilter" + Name
	scoreKey    fwk.StateKey = "PreScore" + Name
)

type fit struct {
	ignored       map[corev1.ResourceName]bool
	ignoredGroups map[string]bool
	strategy      strategy
	handle        fwk.Handle
}

// need is how much of one resource a node must have left.
type need struct {
	name   corev1.ResourceName
	amount int64
	reason string
	device bool // a class of devices gives it too, on nodes that have none of it themselves
}

// needs are a pod's: CPU, memory and ephemeral storage first, then the others by name.
type needs []need

// Clone is itself: it does not change.
func (n needs) Clone() fwk.StateData { return n }

// New makes the plugin.
func New(_ context.Context, o runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := readArgs(o)
	if err != nil {
		return nil, err
	}
	f := &fit{
		ignored: map[corev1.ResourceName]bool{}, ignoredGroups: map[string]bool{},
		strategy: newStrategy(args.ScoringStrategy), handle: handle,
	}
	for _, name := range args.IgnoredResources {
		f.ignored[corev1.ResourceName(name)] = true
	}
	for _, group := range args.IgnoredResourceGroups {
		f.ignoredGroups[group] = true
	}
	return f, nil
}

// Name is Kubernetes' name of the plugin.
func (*fit) Name() string { return Name }

// PreFilter sums up what the pod asks for.
func (f *fit) PreFilter(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	state.Write(filterKey, f.needs(pod))
	return nil, nil
}

// PreFilterExtensions are none: what pods use is in the information of nodes.
func (*fit) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func (f *fit) needs(pod *corev1.Pod) needs {
	list := cluster.Requests(pod)
	all := make(needs, 0, len(list))
	for name := range list {
		amount := resources.Amount(list, name)
		if amount == 0 {
			continue
		}
		n := need{name: name, amount: amount, reason: reasonPrefix + string(name)}
		if cluster.Extended(name) {
			if f.ignores(name) {
				continue
			}
			n.device = f.fromDevices(name)
		} else if strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix) {
			// No resource of nodes is named so: a class of devices is.
			n.device = f.fromDevices(name)
		}
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b need) int {
		if c := rank(a.name) - rank(b.name); c != 0 {
			return c
		}
		return strings.Compare(string(a.name), string(b.name))
	})
	return all
}

func (f *fit) ignores(name corev1.ResourceName) bool {
	group, _, _ := strings.Cut(string(name), "/")
	return f.ignored[name] || f.ignoredGroups[group]
}

// fromDevices says of an extended resource that a class of devices stands for it.
func (f *fit) fromDevices(name corev1.ResourceName) bool {
	if f.handle == nil {
		return false
	}
	m := f.handle.SharedDRAManager()
	if m == nil {
		return false
	}
	r := m.DeviceClassResolver()
	return r != nil && r.GetDeviceClass(name) != nil
}

func rank(name corev1.ResourceName) int {
	switch name {
	case corev1.ResourceCPU:
		return 0
	case corev1.ResourceMemory:
		return 1
	case corev1.ResourceEphemeralStorage:
		return 2
	}
	return 3
}

// Filter takes nodes that have enough left.
func (f *fit) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	n, err := plugin.Read[needs](state, filterKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	reasons, never := n.lacking(len(info.GetPods()), info.GetAllocatable(), info.GetRequested())
	if len(reasons) == 0 {
		return nil
	}
	code := fwk.Unschedulable
	if never {
		code = fwk.UnschedulableAndUnresolvable // even an empty node has not so much
	}
	return fwk.NewStatus(code, reasons...)
}

// lacking is what a node has too little of, and whether it has too little of something without any pods too.
func (n needs) lacking(pods int, allocatable, requested fwk.Resource) (reasons []string, never bool) {
	if pods+1 > allocatable.GetAllowedPodNumber() {
		reasons = append(reasons, reasonPods)
	}
	for i := range n {
		all := resources.Of(allocatable, n[i].name)
		if n[i].device && all == 0 {
			continue // the devices decide
		}
		if n[i].amount > all-resources.Of(requested, n[i].name) {
			if len(reasons) < mostReasons {
				reasons = append(reasons, n[i].reason)
			}
			never = never || n[i].amount > all
		}
	}
	return reasons, never
}

// SignPod says what of a pod counts here. What devices give changes with the classes, which pods do not tell.
func (f *fit) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	common, complete := resources.Plain(pod)
	if !common && slices.ContainsFunc(f.needs(pod), func(n need) bool { return n.device }) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "devices may give what the pod asks for")
	}
	signed := []fwk.SignFragment{{Key: fwk.ResourcesSignerName, Value: resources.Signed{Pod: pod}}}
	if !complete {
		// What containers that ask for nothing count for when nodes are compared depends on how many there are.
		signed = append(signed, fwk.SignFragment{Key: "v1.Pod.Spec.WantedAtLeast()", Value: resources.WantedAtLeast(pod)})
	}
	return signed, nil
}

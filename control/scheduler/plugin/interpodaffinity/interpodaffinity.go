// Package interpodaffinity places pods near those that they want to be near, away from those that they do not, and
// away from those that do not want them.
package interpodaffinity

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corelisters "k8s.io/client-go/listers/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "InterPodAffinity"

const (
	reasonAffinity     = "node(s) didn't match pod affinity rules"
	reasonAntiAffinity = "node(s) didn't match pod anti-affinity rules"
	reasonExisting     = "node(s) didn't satisfy existing pods anti-affinity rules"
)

const (
	defaultHardWeight = 1
	heaviest          = 100
)

type interPod struct {
	hardWeight      int64 // of a required term of another pod that wants this one near
	ignorePreferred bool  // of other pods, for a pod that prefers nothing itself
	handle          fwk.Handle
	namespaces      corelisters.NamespaceLister
	ledgers         ledgers
}

// New makes the plugin.
func New(_ context.Context, o runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := plugin.Args[configv1.InterPodAffinityArgs](o)
	if err != nil {
		return nil, err
	}
	weight := int32(defaultHardWeight)
	if args.HardPodAffinityWeight != nil {
		weight = *args.HardPodAffinityWeight
	}
	if weight < 0 || weight > heaviest {
		return nil, field.Invalid(field.NewPath("hardPodAffinityWeight"), weight, "not in valid range [0, 100]")
	}
	return &interPod{
		hardWeight: int64(weight), ignorePreferred: args.IgnorePreferredTermsOfExistingPods, handle: handle,
		namespaces: handle.SharedInformerFactory().Core().V1().Namespaces().Lister(),
	}, nil
}

// Name is Kubernetes' name of the plugin.
func (*interPod) Name() string { return Name }

// SignPod says what of a pod counts here. Where one with terms may go changes with every pod that is placed.
func (p *interPod) SignPod(ctx context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if hasTerms(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "pods with affinity to pods are placed one by one")
	}
	return p.SignFar(ctx, pod)
}

func hasTerms(pod *corev1.Pod) bool {
	a := pod.Spec.Affinity
	return a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil)
}

// LooksFar says whether pods on other nodes may matter for a pod.
func (*interPod) LooksFar(pod *corev1.Pod, opinions bool) bool { return opinions || hasTerms(pod) }

// SignFar says what of any pod counts here.
func (p *interPod) SignFar(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	var terms [2]any
	if a := pod.Spec.Affinity; a != nil {
		terms = [2]any{a.PodAffinity, a.PodAntiAffinity}
	}
	return []fwk.SignFragment{
		{Key: "v1.Pod.Spec.Affinity.PodAffinity", Value: terms},
		{Key: fwk.LabelsSignerName, Value: pod.Labels},
		// Terms of others name namespaces, or select them.
		{Key: "v1.Pod.Namespace", Value: pod.Namespace},
		{Key: "v1.Namespace.Labels", Value: map[string]string(p.labelsOf(pod.Namespace))},
	}, nil
}

// labelsOf are of a pod's namespace, none if it is not known yet.
func (p *interPod) labelsOf(namespace string) labels.Set {
	ns, err := p.namespaces.Get(namespace)
	if err != nil {
		return nil
	}
	return ns.Labels
}

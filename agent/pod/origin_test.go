package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/podtest"
)

// fromAPI makes pods those of an API server.
func fromAPI(pods ...*corev1.Pod) []*corev1.Pod {
	for _, p := range pods {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[desired.AnnotationSource] = string(desired.API)
	}
	return pods
}

// TestRefusedByOrigin: nobody makes another pod in place of a static one, so it waits; that of an API server fails, and
// stays so.
func TestRefusedByOrigin(t *testing.T) {
	small(t, "1", func(n *testNode) {
		first := podtest.Claiming("first", 0, "800m", "10Mi", false)
		static, remote := podtest.Claiming("static", 0, "400m", "10Mi", false), podtest.Claiming("remote", 0, "400m", "10Mi", false)
		fromAPI(remote)
		n.apply(first)
		n.apply(static, remote)
		n.is("static", "Pending(OutOfcpu) main:0:ContainerCreating")
		n.is("remote", "Failed(OutOfcpu) main:0:ContainerCreating")
		n.remove(first)
		n.is("static", "Running main:0:running")
		n.apply(remote)
		n.is("remote", "Failed(OutOfcpu) main:0:ContainerCreating")
		n.apply(fromAPI(podtest.Claiming("again", 0, "400m", "10Mi", false))...)
		n.is("again", "Running main:0:running")
	})
}

// TestStartOrderByOrigin: a pod that starts after another one waits for it, wherever it comes from.
func TestStartOrderByOrigin(t *testing.T) {
	onNode(t, func(n *testNode) {
		remote := podtest.New("web")
		fromAPI(remote)
		remote.Annotations[desired.AnnotationAfter] = "db"
		remote.Spec.NodeName = "node"
		n.apply(remote)
		n.is("web", "Pending(NotItsTurn) main:0:ContainerCreating")
		n.apply(podtest.New("db-node"))
		n.is("web", "Running main:0:running")
	})
}

// TestPreemptionByOrigin: a static pod is critical whatever its priority is, and a pod of an API server is by its
// priority alone.
func TestPreemptionByOrigin(t *testing.T) {
	small(t, "1", func(n *testNode) {
		low, high := podtest.Claiming("low", 0, "800m", "10Mi", false), podtest.Claiming("high", 1000, "400m", "10Mi", false)
		fromAPI(low, high)
		n.apply(low)
		n.apply(high)
		n.is("high", "Failed(OutOfcpu) main:0:ContainerCreating")
		n.apply(podtest.Claiming("static", 0, "400m", "10Mi", false))
		n.pass(time.Minute)
		n.is("static", "Running main:0:running")
		n.is("low", "Failed(Preempting) main:0:Error(143)")
		system := podtest.Claiming("system", 2_000_000_000, "800m", "10Mi", false)
		n.apply(fromAPI(system)...)
		n.pass(time.Minute)
		n.is("system", "Running main:0:running")
		n.is("static", "Failed(Preempting) main:0:Error(143)")
		n.remove(system)
		n.pass(time.Minute)
		n.is("static", "Running main:0:running")
		n.is("low", "Failed(Preempting) main:0:Error(143)") // its controller has made another one long ago
	})
}

// TestSuccessorByOrigin: what a manifest had before goes on until the node takes what it has now; what an API server
// has deleted ends.
func TestSuccessorByOrigin(t *testing.T) {
	small(t, "1", func(n *testNode) {
		static, remote := podtest.Claiming("static", 0, "400m", "10Mi", false), podtest.Claiming("remote", 0, "400m", "10Mi", false)
		fromAPI(remote)
		n.apply(static, remote)
		next, after := podtest.Claiming("static", 0, "4", "10Mi", false), podtest.Claiming("remote", 0, "4", "10Mi", false)
		next.UID, after.UID = "static-2", "remote-2"
		fromAPI(after)
		n.apply(next, after)
		n.pass(time.Minute)
		n.is("static", "Running main:0:running")
		n.is("remote", "Failed(OutOfcpu) main:0:ContainerCreating")
	})
}

// TestObjectsByOrigin wants a pod to be started with the object of where it comes from, and with no other of that name.
func TestObjectsByOrigin(t *testing.T) {
	onNode(t, func(n *testNode) {
		asks := func(name string) *corev1.Pod {
			p := podtest.New(name)
			ref := corev1.LocalObjectReference{Name: "settings"}
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}}}
			return p
		}
		remote := asks("remote")
		remote.Spec.NodeName = "node"
		n.apply(asks("static"))
		n.apply(fromAPI(remote)...)
		u := desired.Update{Kind: object.ConfigMap, Key: types.NamespacedName{Namespace: "default", Name: "settings"}, Origin: desired.API}
		u.Object = &corev1.ConfigMap{}
		n.updates <- u
		n.pass(0)
		n.is("remote", "Running main:0:running")
		n.is("static", "Pending main:0:CreateContainerConfigError")
		u.Origin = desired.File
		n.updates <- u
		n.pass(0)
		n.is("static", "Running main:0:running")
	})
}

// TestGatesByOrigin wants the conditions that an API server has of a pod to open its readiness gates, and to stay.
func TestGatesByOrigin(t *testing.T) {
	onNode(t, func(n *testNode) {
		pod := podtest.New("gated")
		pod.Spec.NodeName = "node"
		pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/in"}}
		fromAPI(pod)
		ready := func() string {
			t.Helper()
			out := ""
			for _, c := range n.pod("gated").Status.Conditions {
				if c.Type == corev1.PodReady || c.Type == "example.com/in" {
					out += string(c.Type) + "=" + string(c.Status) + " "
				}
			}
			return out
		}
		n.apply(pod)
		n.is("gated", "Running main:0:running")
		if got := ready(); got != "Ready=False " {
			t.Errorf("without the condition: %s", got)
		}
		for _, s := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue} {
			pod = pod.DeepCopy()
			at := metav1.NewTime(time.Unix(1000, 0))
			pod.Status.Conditions = []corev1.PodCondition{
				{Type: "example.com/in", Status: s, ObservedGeneration: 7, LastTransitionTime: at}, {Type: corev1.PodReady, Status: corev1.ConditionUnknown},
			}
			n.apply(pod)
			want := "Ready=" + string(s) + " example.com/in=" + string(s) + " "
			if got := ready(); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		for _, c := range n.pod("gated").Status.Conditions {
			if c.Type == "example.com/in" && (c.ObservedGeneration != 7 || c.LastTransitionTime.Unix() != 1000) {
				t.Errorf("somebody else's condition is changed: %+v", c)
			}
		}
	})
}

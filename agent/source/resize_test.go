package source

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/source/manifest"
)

func sizedYAML(name, cpu, memory, rest string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  initContainers:
  - name: init
    image: nginx:1
    resources: {limits: {cpu: 10m}}
  containers:
  - name: main
    image: nginx:1
    resources: {requests: {cpu: %s}, limits: {memory: %s}}
    %s
`, name, cpu, memory, rest)
}

func (h *harness) waitCPU(pod, cpu string) types.UID {
	h.t.Helper()
	var uid types.UID
	h.wait(pod+" with "+cpu, func() bool {
		p := h.pods["default/"+pod+"-node1"]
		if p == nil || p.Spec.Containers[0].Resources.Requests.Cpu().String() != cpu {
			return false
		}
		uid = p.UID
		return true
	})
	return uid
}

// A pod goes on when nothing but its resources has changed, whatever else happens to its manifest meanwhile; it is
// another one when anything else has.
func TestResizedPodGoesOn(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	keep := func(c *Config) { c.StateDir = state }
	h := start(t, dir, keep)
	h.write("a.yaml", sizedYAML("web", "100m", "64Mi", ""))
	first := h.waitCPU("web", "100m")
	same := func(cpu, what string) {
		t.Helper()
		if got := h.waitCPU("web", cpu); got != first {
			t.Errorf("%s: another pod", what)
		}
	}
	h.write("a.yaml", sizedYAML("web", "200m", "32Mi", ""))
	same("200m", "resized")
	h.write("b.yaml", sizedYAML("web", "200m", "32Mi", ""))
	h.remove("a.yaml")
	h.flush()
	h.write("b.yaml", sizedYAML("web", "300m", "32Mi", "resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]"))
	same("300m", "resized after its manifest was renamed")
	h.stop()
	h = start(t, dir, keep)
	same("300m", "restarted")
	h.stop()
	h.write("b.yaml", sizedYAML("web", "400m", "32Mi", ""))
	h = start(t, dir, keep)
	same("400m", "resized while nobody was there")

	h.write("b.yaml", sizedYAML("web", "401m", "32Mi", "env: [{name: A, value: b}]"))
	if h.waitCPU("web", "401m") == first {
		t.Error("a pod with another environment is the same one")
	}
}

// podOf is the pod of a manifest.
func podOf(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	docs := (&manifest.Reader{Node: "n"}).Read([]byte(text), manifest.Place{Origin: desired.File})
	if len(docs) != 1 || docs[0].Item == nil {
		t.Fatalf("%s: %+v", text, docs)
	}
	return docs[0].Item.Pod
}

func TestOnlyResized(t *testing.T) {
	pod := func(text string) *corev1.Pod { return podOf(t, text) }
	base := sizedYAML("web", "100m", "64Mi", "")
	for text, want := range map[string]bool{
		base:                                true,
		sizedYAML("web", "150m", "1Gi", ""): true,
		sizedYAML("web", "100m", "64Mi", "tty: true"):                                                               false,
		sizedYAML("web", "100m", "64Mi", "resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]"): false,
	} {
		if got := onlyResized(pod(base), pod(text)); got != want {
			t.Errorf("%t for\n%s", got, text)
		}
	}
	guaranteed := `{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: main, image: a, resources: {limits: {cpu: 100m, memory: 64Mi}}}]}}`
	burstable := `{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: main, image: a, resources: {requests: {cpu: 50m}, limits: {cpu: 100m, memory: 64Mi}}}]}}`
	if onlyResized(pod(guaranteed), pod(burstable)) {
		t.Error("another QoS class is no resize")
	}
}

package inspect

import (
	"errors"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// A limit that somebody has set on a group above all pods holds for them, and is named.
func TestTightestLimit(t *testing.T) {
	live, h, _ := node(t)
	limit := int64(100 << 20)
	if err := h.Update(live.CgroupRoot, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}); err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]string{
		"show web":       "limited to memory 100Mi of " + live.CgroupRoot,
		"show web/nginx": "",
		"explain web":    "the pod may have no more memory than 100Mi, the limit of group " + live.CgroupRoot + " that it is in.",
		"check":          "its limit of memory is 128Mi, but group " + live.CgroupRoot + " that it is in has no more than 100Mi",
	} {
		out, err := execute(t, append(strings.Fields(what), "--cgroup-root", live.CgroupRoot, "--pods", live.PodsFile, "--log-dir", live.LogDir)...)
		if err != nil && !errors.Is(err, ErrProblems) {
			t.Fatal(err)
		}
		if !strings.Contains(out, want) || want == "" && strings.Contains(out, "limited to memory") {
			t.Errorf("%s does not say %q:\n%s", what, want, out)
		}
	}
	// A pod is throttled as much as its container that is throttled most: it has no quota of its own.
	m, err := newMonitor(live)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	for i := 0; ; i++ {
		if err := m.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		pods, containers := throttledOf(m, false, "default/web"), throttledOf(m, true, "default/web/nginx")
		if pods != containers {
			t.Fatalf("the pod is throttled in %v%%, its container in %v%%", pods, containers)
		}
		if pods > 0 {
			return
		}
	}
}

func throttledOf(m *monitor, containers bool, name string) float64 {
	for _, r := range m.rows("name", containers) {
		if r.Name == name {
			return r.Throttled
		}
	}
	return -1
}

// What a manifest leaves to the API is no drift.
func TestManifestsAreDefaulted(t *testing.T) {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		makeContainer("a", nil, amount("cpu", "500m", "memory", "64Mi")), makeContainer("b", nil, nil),
	}}}
	s := &Snapshot{Names: map[string]Identity{}, Groups: map[string]Group{"/kubepods/burstable/pod1": {}}, Machine: Machine{Root: "/"}}
	s.use([]corev1.Pod{p}, "test")
	for _, v := range kube.PodSettings(cgroups.Legacy, &s.Pods[0], kube.Options{}) {
		if v.File == "cpu.shares" && v.Want != "512" {
			t.Errorf("%+v", v)
		}
	}
	whole := corev1.Pod{Spec: corev1.PodSpec{
		Resources:  &corev1.ResourceRequirements{Limits: amount("cpu", "2", "memory", "1Gi")},
		Containers: []corev1.Container{makeContainer("a", amount("cpu", "100m"), nil)},
	}}
	setDefaults(&whole)
	if r := whole.Spec.Resources.Requests; r.Cpu().String() != "100m" || r.Memory().String() != "1Gi" {
		t.Errorf("the pod as a whole asks for %v", r)
	}
}

package admission

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/agent/pod/podtest"
)

func TestChooseVictims(t *testing.T) {
	here := []*corev1.Pod{
		podtest.Claiming("best", 0, "", "", false), podtest.Claiming("small", 0, "100m", "100Mi", false), podtest.Claiming("big", 0, "1", "1Gi", false),
		podtest.Claiming("bigger", 0, "1", "2Gi", false), podtest.Claiming("sure", 0, "1", "1Gi", true), podtest.Claiming("important", 1000, "8", "64Gi", false),
	}
	for _, c := range []struct{ cpu, memory, pods, want string }{
		{"0", "0", "1", "best"},
		{"100m", "0", "0", "small"},
		{"200m", "0", "0", "big"}, // one is fewer than two
		{"1", "2Gi", "0", "bigger"},
		{"2", "0", "0", "big bigger"},
		{"2500m", "0", "0", "bigger big sure"}, // all that the worse classes have is less
		{"4", "0", "0", "none"},
		{"1", "1Gi", "0", "big"},
	} {
		lacks := corev1.ResourceList{}
		for name, q := range map[corev1.ResourceName]string{"cpu": c.cpu, "memory": c.memory, "pods": c.pods} {
			if q != "0" {
				lacks[name] = resource.MustParse(q)
			}
		}
		got, ok := chooseVictims(podtest.Claiming("new", 500, "", "", false), here, lacks)
		names := []string{}
		for _, p := range got {
			names = append(names, p.Name)
		}
		want := strings.Fields(c.want)
		slices.Sort(names)
		slices.Sort(want)
		if ok != (c.want != "none") || ok && !slices.Equal(names, want) {
			t.Errorf("%+v: %v %v", c, names, ok)
		}
	}
}

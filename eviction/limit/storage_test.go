package limit

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestStorageExceeded(t *testing.T) {
	container := func(name, limit string) corev1.Container {
		c := corev1.Container{Name: name}
		if limit != "" {
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
		}
		return c
	}
	for _, tt := range []struct {
		name string
		a, b string // limits
		use  storage
		want string
	}{
		{name: "no limit", use: storage{containers: map[string]int64{"a": 1 << 40}}},
		{name: "exactly", a: "1Mi", b: "1Mi", use: storage{containers: map[string]int64{"a": 1 << 20, "b": 1 << 20}}},
		{
			name: "pod", a: "1Mi", b: "1Mi", use: storage{containers: map[string]int64{"a": 1 << 20, "b": 1 << 20}, volumes: map[string]int64{"v": 1}},
			want: "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
		},
		{
			name: "what they share is the pod's, and no container's", a: "1Mi", b: "2Mi", use: storage{containers: map[string]int64{Shared: 3<<20 + 1}},
			want: "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ",
		},
		{name: "what they share is within", a: "1Mi", b: "2Mi", use: storage{containers: map[string]int64{Shared: 2 << 20, "a": 1 << 20}}},
		{
			name: "container", a: "1Mi", b: "2Mi", use: storage{containers: map[string]int64{"a": 1<<20 + 1}},
			want: `Container a exceeded its local ephemeral storage limit "1Mi". `,
		},
		{
			name: "one without a limit counts for the others", a: "1Mi", use: storage{containers: map[string]int64{"b": 2 << 20}},
			want: "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
		},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container("a", tt.a), container("b", tt.b)}}}
		got := ""
		for _, l := range slices.Backward(tt.use.levels(pod)) {
			if l.left() < 0 {
				got = l.message
			}
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		if limitsStorage(pod) != (tt.a+tt.b != "") {
			t.Errorf("%s: limited %v", tt.name, limitsStorage(pod))
		}
	}
}

package eviction

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// node has pods, and what they use.
type node struct {
	pods       []*corev1.Pod
	volumes    map[string]int64
	containers map[string]int64
	err        error
	counted    int
	evicted    map[types.UID]string
}

func (n *node) Here() []*corev1.Pod { return n.pods }

func (n *node) Evict(pod *corev1.Pod, message string) { n.evicted[pod.UID] = message }

func (n *node) Volume(_ context.Context, _ *corev1.Pod, name string) (int64, bool) {
	used, ok := n.volumes[name]
	return used, ok
}

func (n *node) Containers(context.Context, *corev1.Pod) (map[string]int64, []string, error) {
	n.counted++
	return n.containers, nil, n.err
}

func TestLimits(t *testing.T) {
	limit := resource.MustParse("1Mi")
	withVolume := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}},
	}}}
	withVolume.UID = "volume"
	withLimit := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: limit},
	}}}}}
	withLimit.UID = "limit"
	without := &corev1.Pod{}
	without.UID = "none"
	n := &node{
		pods: []*corev1.Pod{withVolume, withLimit, without}, volumes: map[string]int64{"v": 1 << 20},
		containers: map[string]int64{"a": 1<<20 + 1}, err: errors.New("not now"), evicted: map[types.UID]string{},
	}
	dir := t.TempDir()
	l := NewLimits(n, n, []string{dir}, slog.New(slog.DiscardHandler))
	writes := 0
	look := func() {
		t.Helper()
		before := l.free[dir]
		for range 20 { // somebody else may give back what this takes
			writes++
			if err := os.WriteFile(filepath.Join(dir, string(rune('a'+writes))), make([]byte, 1<<16), 0o600); err != nil {
				t.Fatal(err)
			}
			l.look(t.Context())
			if l.free[dir] != before {
				return
			}
		}
		t.Fatal("nothing that was written was seen")
	}
	look()
	if len(n.evicted) > 0 || n.counted == 0 {
		t.Fatalf("nobody is known to be above a limit, but %v ended; containers were counted %d times", n.evicted, n.counted)
	}
	n.err, n.volumes["v"] = nil, 1<<20+1
	look()
	if len(n.evicted) != 2 || n.evicted["volume"] != `Usage of EmptyDir volume "v" exceeds the limit "1Mi". ` ||
		n.evicted["limit"] != "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. " {
		t.Errorf("%v", n.evicted)
	}
	clear(n.evicted)
	l.look(t.Context())
	if len(n.evicted) > 0 {
		t.Errorf("told to end twice: %v", n.evicted)
	}
	n.pods = nil
	l.look(t.Context())
	if len(l.over) > 0 {
		t.Errorf("pods that are gone are remembered: %v", l.over)
	}
}

package inspect

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/cgroups"
)

// Whatever a container calls its processes and groups, and whatever a capture calls anything, no command writes a
// control character, and nobody forges a line.
func TestNamesAreVisible(t *testing.T) {
	const evil = "a\x1b[2J\nkubepods 0\r\u009b31m\u202eb\x7f\xff"
	const pod, id = "/kubepods/burstable/podbbb22222-2222-4222-8222-222222222222", "bbb0bbb0bbb0bbb0bbb0bbb0bbb0bbb0"
	s := &Snapshot{
		Version: snapshotVersion, Machine: Machine{Mode: cgroups.Legacy, Root: "/", Memory: 1 << 30},
		Groups: map[string]Group{
			"/kubepods": {}, "/kubepods/burstable": {}, pod: {}, pod + "/" + id: {Pids: []int{7}, Inode: 5}, pod + "/" + id + "/" + evil: {Pids: []int{8}, Files: map[string]string{"cpu.shares": evil}},
			"/kubepods/" + evil: {Missing: []string{evil}},
		},
		Processes: map[int]Process{7: {Comm: evil, OOMScore: 5}, 8: {Comm: evil}},
		Names:     map[string]Identity{"bbb22222-2222-4222-8222-222222222222": {Namespace: "default", Name: "web" + evil, Containers: map[string]string{id: evil}}},
		PodsFrom:  evil, Partial: true,
		Pods: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "gone", UID: "9"},
			Status:     corev1.PodStatus{Reason: evil, Message: evil},
		}},
	}
	file := filepath.Join(t.TempDir(), "capture.json")
	if err := s.Save(file); err != nil {
		t.Fatal(err)
	}
	lines := map[string]int{"find 8": 2, "find 7": 2, "tree": 7}
	for _, what := range []string{"tree", "tree --columns cpu.shares", "show bbb22222", "explain bbb22222", "explain gone", "find 7", "find 8", "find " + pod, "check", "show none"} {
		for _, format := range []string{"", "json", "yaml"} {
			got, err := execute(t, append(strings.Fields(what), "--from", file, "-o", format)...)
			if err != nil && !errors.Is(err, ErrProblems) && !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: %v", what, err)
			}
			if err != nil {
				got += err.Error()
			}
			if i := strings.IndexFunc(got, func(r rune) bool { return r != '\n' && steers(r) }); i >= 0 {
				t.Errorf("%s -o %s writes %q", what, format, got[max(i-20, 0):min(i+20, len(got))])
			}
			if n := lines[what]; format == "" && n > 0 && strings.Count(got, "\n") != n {
				t.Errorf("%s writes %d lines, want %d:\n%s", what, strings.Count(got, "\n"), n, got)
			}
			var v any
			if err == nil && format == "json" && json.Unmarshal([]byte(got), &v) != nil || err == nil && format == "yaml" && yaml.Unmarshal([]byte(got), &v) != nil {
				t.Errorf("%s -o %s cannot be read again:\n%s", what, format, got)
			}
		}
	}
}

package desired

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestOriginOf(t *testing.T) {
	for text, want := range map[string]Origin{"file": File, "http": URL, "api": API, "": File, "elsewhere": File} {
		pod := &corev1.Pod{}
		if text != "" {
			pod.Annotations = map[string]string{AnnotationSource: text}
		}
		if got := OriginOf(pod); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
		if static := want != API; RulesOf(pod) != (Rules{
			Waits: static, Returns: static, KeepsOld: static, Critical: static, Spared: static, Manifest: static, CountedElsewhere: !static,
		}) {
			t.Errorf("%q: %+v", text, RulesOf(pod))
		}
	}
}

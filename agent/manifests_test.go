package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/source"
)

// sinkFunc is called with events.
type sinkFunc func(event.Event)

func (f sinkFunc) Put(e event.Event) { f(e) }

// An event about a manifest is of the pod that it concerns: of one that runs only if this file asks for it, or keeps
// it.
func TestEventsOfManifests(t *testing.T) {
	runs := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-n", UID: "runs"}}
	wrong := []string{"no containers"}
	for name, c := range map[string]struct {
		of           source.Problem
		uid          types.UID
		typ, reason  string
		message      string
		ofNodeItself bool
	}{
		"kept": {
			of: source.Problem{File: "/m/b", Pod: "default/web-n", Errors: wrong, Kept: []string{"default/web-n"}}, uid: "runs",
			typ: corev1.EventTypeWarning, reason: manifestRefused,
			message: "/m/b: no containers; what runs stays as the file had it before",
		},
		"warned of": {
			of: source.Problem{File: "/m/a", Pod: "default/web-n", Warnings: wrong}, uid: "runs",
			typ: corev1.EventTypeWarning, reason: manifestFlawed, message: "/m/a: no containers",
		},
		"another's name": {
			of: source.Problem{File: "/m/b", Pod: "default/web-n", Errors: wrong}, uid: "/m/b#default/web-n",
			typ: corev1.EventTypeWarning, reason: manifestRefused, message: "/m/b: no containers",
		},
		"in order": {
			of: source.Problem{File: "/m/a", Pod: "default/web-n"}, uid: "runs",
			typ: corev1.EventTypeNormal, reason: manifestInOrder, message: "/m/a: nothing is wrong with it any more",
		},
		"no pod": {
			of: source.Problem{File: "/m/c", Pod: "ConfigMap default/c", Errors: wrong}, uid: "n", ofNodeItself: true,
			typ: corev1.EventTypeWarning, reason: manifestRefused, message: "ConfigMap default/c: /m/c: no containers",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []event.Event
			m := &manifests{
				files: files{of: map[types.NamespacedName]string{}}, pods: func() []*corev1.Pod { return []*corev1.Pod{runs} },
				events: event.NewRecorder("n", sinkFunc(func(e event.Event) { got = append(got, e) })),
			}
			m.files.set(desired.Update{Key: types.NamespacedName{Namespace: "default", Name: "web-n"}, Pod: runs, File: "/m/a"})
			m.report(c.of)
			if len(got) != 1 {
				t.Fatalf("%d events: %v", len(got), got)
			}
			e := got[0]
			if e.About.UID != c.uid || (e.About.Kind == "Node") != c.ofNodeItself || e.Type != c.typ || e.Reason != c.reason ||
				e.Message != c.message {
				t.Errorf("got %+v", e)
			}
		})
	}
}

package source

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
)

func TestBoth(t *testing.T) {
	for steps, want := range map[string]string{
		// m: manifests, a: the API server; + asks for the pod, - does not any more, s: has said all
		"m+ a+ m-":    "m+ m- a+",
		"a+ m+ a-":    "a+ a- m+",
		"m+ a+ a- m-": "m+ m-",
		"a+ a+ m+ m-": "a+ a+",
		"m-":          "m-",
		"ms m+ as":    "m+ s",
		"as as":       "",
		"mo ao":       "mo ao",
	} {
		var b Both
		var got []string
		for step := range strings.FieldsSeq(steps) {
			u := desired.Update{Key: types.NamespacedName{Namespace: "default", Name: "web"}, Synced: step[1] == 's', File: step[:1]}
			switch step[1] {
			case '+':
				u.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
			case 'o':
				u.Kind, u.Object = object.Secret, &corev1.Secret{}
			}
			for _, out := range b.Add(u, step[0] == 'a') {
				switch {
				case out.Synced:
					got = append(got, "s")
				case out.Object != nil:
					got = append(got, out.File+"o")
				case out.Pod != nil:
					got = append(got, out.File+"+")
				default:
					got = append(got, out.File+"-")
				}
			}
		}
		if fmt.Sprint(got) != "["+want+"]" {
			t.Errorf("%s: %v, want [%s]", steps, got, want)
		}
	}
}

func TestBothWaits(t *testing.T) {
	var b Both
	key := types.NamespacedName{Namespace: "default", Name: "web"}
	pod := &corev1.Pod{}
	b.Add(desired.Update{Key: key, Pod: pod}, false)
	if b.Waits(key) {
		t.Error("it waits for nobody")
	}
	b.Add(desired.Update{Key: key, Pod: pod}, true)
	if !b.Waits(key) {
		t.Error("it has the name of another one")
	}
}

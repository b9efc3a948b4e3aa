package history

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestData has a template come back from its revision, as a patch that replaces all of it.
func TestData(t *testing.T) {
	of := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: new(int64(1<<60 + 1))},
	}
	data, err := Data(of)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Template(&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: data}})
	if err != nil || *back.Spec.TerminationGracePeriodSeconds != 1<<60+1 || back.Labels["a"] != "b" {
		t.Errorf("it comes back as %v, %v", back, err)
	}
	// What Kubernetes has written says the same with other words.
	theirs := `{"spec":{"template":{"$patch":"replace","metadata":{"creationTimestamp":null,"labels":{"a":"b"}},
		"spec":{"containers":[{"image":"i","name":"c","resources":{}}],"terminationGracePeriodSeconds":1152921504606846977}}}}`
	if !Equal(data, []byte(theirs)) {
		t.Errorf("%s is another one", data)
	}
	of.Spec.Containers[0].Image = "j"
	other, err := Data(of)
	if err != nil || Equal(data, other) {
		t.Errorf("%s is the same, %v", other, err)
	}
	for _, bad := range []string{"", "{", "[]", `{"spec":7}`, `{"spec":{}}`, `{"spec":{"template":"x"}}`} {
		if Equal([]byte(bad), data) {
			t.Errorf("%s is the same", bad)
		}
		if _, err := Template(&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(bad)}}); err == nil {
			t.Errorf("%s has a template", bad)
		}
	}
	// A hash is in names of objects, and is what it was with every version of the program.
	if h := Hash([]byte("data"), 0); h != "7b7584ccd5" {
		t.Errorf("the hash is %s", h)
	}
	if Hash(data, 0) == Hash(data, 1) || Hash(data, 0) == Hash(other, 0) {
		t.Error("the hash does not tell them apart")
	}
}

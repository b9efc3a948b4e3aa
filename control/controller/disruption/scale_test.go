package disruption

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestScaleOfSets has a budget be about the pods of a hundred stateful sets: nobody is asked for their scales.
func TestScaleOfSets(t *testing.T) {
	const n = 100
	client := fake.NewClientset()
	apps := informers.NewSharedInformerFactory(client, 0).Apps().V1()
	var pods []*corev1.Pod
	for i := range n {
		s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}}
		s.Spec.Replicas = new(int32(3))
		if err := apps.StatefulSets().Informer().GetStore().Add(s); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			s = &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: s.Name, UID: "before"}}
		}
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: fmt.Sprint(i), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))},
		}})
	}
	got, err := owners{client, apps}.of(t.Context(), pods)
	if err != nil || got.expected != 3*n/2 || len(got.unmanaged) != 0 {
		t.Errorf("the scale is %v, %v", got, err)
	}
	if asked := client.Actions(); len(asked) != 0 {
		t.Errorf("%d requests are made", len(asked))
	}
}

package job

import (
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

// crowded is a namespace with ten thousand pods of a thousand jobs that have ended.
func crowded(t testing.TB) *keeper {
	pods := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Pods()
	k := &keeper{client: fake.NewClientset(), index: pods.Informer().GetIndexer()}
	if err := controller.Index(pods.Informer(), byJob, jobOf); err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 {
		job := metav1.ObjectMeta{Name: fmt.Sprint("j", i%1000), UID: types.UID(fmt.Sprint("j", i%1000))}
		if err := k.index.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: fmt.Sprint(i), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&job, kind)},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// TestEndedAmongMany has a look at a job that has ended cost what it has left behind, whoever else has pods.
func TestEndedAmongMany(t *testing.T) {
	k := crowded(t)
	key := cache.ObjectName{Namespace: "n", Name: "j7"}
	if n := testing.AllocsPerRun(5, func() {
		if err := k.left(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}); n > 10 {
		t.Errorf("it costs %.0f allocations", n)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "x", UID: "x", Finalizers: []string{batchv1.JobTrackingFinalizer}}}
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&metav1.ObjectMeta{Name: "j7", UID: "j7"}, kind)}
	if err := k.index.Add(p); err != nil {
		t.Fatal(err)
	}
	if found, err := k.index.ByIndex(byJob, key.String()); err != nil || len(found) != 1 {
		t.Errorf("found are %v, %v", found, err)
	}
}

func BenchmarkEndedAmongMany(b *testing.B) {
	k := crowded(b)
	for b.Loop() {
		if err := k.left(b.Context(), cache.ObjectName{Namespace: "n", Name: "j7"}); err != nil {
			b.Fatal(err)
		}
	}
}

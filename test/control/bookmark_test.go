package control

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// TestBookmarks: a watch that has not asked for bookmarks gets none, while caches of other resources ask etcd how far
// they are, as they do for each list that must be of now.
func TestBookmarks(t *testing.T) {
	t.Parallel()
	p := share(t)
	jobs := p.client.BatchV1().CronJobs(p.ns)
	w, err := jobs.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i := range 20 {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("later-%d", i)}}
		if _, err := p.client.CoreV1().ConfigMaps(p.ns).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	one := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "example.com/main"}}}
	suspended := true
	_, err = jobs.Create(t.Context(), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec: batchv1.CronJobSpec{
			Schedule: "0 0 1 1 *", Suspend: &suspended,
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: one}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-w.ResultChan():
		if e.Type != watch.Added {
			t.Errorf("the watch begins with %s of %+v", e.Type, e.Object)
		}
	case <-time.After(patience):
		t.Error("the watch tells of nothing")
	}
}

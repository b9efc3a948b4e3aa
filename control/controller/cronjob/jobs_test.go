package cronjob

import (
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
)

// TestManyActive has users have written into the status that thousands of jobs run, some of names that no object has:
// few are asked for, those that run stay, and nothing fails.
func TestManyActive(t *testing.T) {
	t.Parallel()
	job := func(name string) *batchv1.Job {
		return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)}}
	}
	done := job("done")
	done.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	c := cronOf("0 * * * *", "")
	c.Namespace, c.Name = "n", "c"
	for _, j := range []*batchv1.Job{done, job("runs"), job("late")} {
		c.Status.Active = append(c.Status.Active, reference(j))
	}
	for i := range 5000 {
		name := fmt.Sprint(i)
		if i%10 < 3 {
			name = []string{"", "a/b", ".."}[i%10]
		}
		c.Status.Active = append(c.Status.Active, corev1.ObjectReference{Name: name, UID: types.UID(fmt.Sprint(i))})
	}
	client := fake.NewClientset(job("runs"), job("late"))
	k := &keeper{client: client, events: record.NewFakeRecorder(10_000)}
	if err := k.running(t.Context(), c, []*batchv1.Job{done, job("runs"), job("unknown")}); err != nil {
		t.Error(err)
	}
	var names []string
	for _, r := range c.Status.Active {
		names = append(names, r.Name)
	}
	if fmt.Sprint(names) != "[runs late unknown]" {
		t.Errorf("those that run are %v", names)
	}
	if n := len(client.Actions()); n > mostAsked {
		t.Errorf("%d requests are made", n)
	}
}

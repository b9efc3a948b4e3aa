package apiserver

import (
	"errors"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestTouched has roles and flows looked after where somebody has written one, and not otherwise.
func TestTouched(t *testing.T) {
	client := fake.NewClientset(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "edit"}})
	from := informers.NewSharedInformerFactory(client, 0)
	var all touched
	if err := all.listen(from); err != nil {
		t.Fatal(err)
	}
	from.Start(t.Context().Done())
	from.WaitForCacheSync(t.Context().Done())
	asked := func(fails error) (looked bool) {
		t.Helper()
		if err := all.do(func(same bool) error {
			looked = !same
			return fails
		}); !errors.Is(err, fails) {
			t.Errorf("it says %v, want %v", err, fails)
		}
		return looked
	}
	written := func(what string) {
		t.Helper()
		for !all.yes.Load() {
			select {
			case <-t.Context().Done():
				t.Fatalf("nobody tells of %s", what)
			case <-time.After(time.Millisecond):
			}
		}
	}
	written("what there is at first")
	failed := errors.New("refused")
	if !asked(failed) || !asked(nil) {
		t.Error("what is new, or has failed, is not looked at")
	}
	if asked(nil) {
		t.Error("what is as it was left is looked at")
	}
	if err := client.RbacV1().ClusterRoles().Delete(t.Context(), "edit", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	written("a role that is deleted")
	if !asked(nil) || asked(failed) || asked(nil) {
		t.Error("a role that is deleted is looked at once")
	}
	schema := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "catch-all"}}
	if _, err := client.FlowcontrolV1().FlowSchemas().Create(t.Context(), schema, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	written("a flow schema that is made")
}

package attachdetach

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestRestart has a controller begin anew while a node that is not ready has its time, and go on counting where the one
// before was: never earlier, and not from the start.
func TestRestart(t *testing.T) {
	ctx := t.Context()
	begin := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
	}}
	name := attachmentName("h", "d", "n")
	client := fake.NewClientset(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u"}, Status: storagev1.VolumeAttachmentStatus{Attached: true}})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
		Conditions:   []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}},
		VolumesInUse: []corev1.UniqueVolumeName{uniqueName(v)},
	}}
	look := func(wanted bool) state {
		t.Helper()
		at, err := client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := state{
			name: "n", node: node, wanted: map[string]wish{}, present: map[string]*storagev1.VolumeAttachment{name: at},
			volumes: map[string]*corev1.PersistentVolume{name: v},
		}
		if wanted {
			s.wanted[name] = wish{volume: v}
		}
		return s
	}
	begun := func() *attacher { return &attacher{d: Deps{Client: client}, unwanted: map[string]since{}} }
	plan := func(a *attacher, s state, now time.Time) plan {
		t.Helper()
		if err := a.remember(ctx, s, now); err != nil {
			t.Fatal(err)
		}
		return decide(s, a.since(now), now)
	}
	plan(begun(), look(true), begin)
	if p := plan(begun(), look(false), begin); len(p.force) > 0 || p.again == 0 {
		t.Fatalf("a node has no time: %+v", p)
	}
	again := begun()
	if p := plan(again, look(false), begin.Add(patience-time.Millisecond)); len(p.force) > 0 || p.again > 2*time.Second {
		t.Fatalf("after a restart the rest of its time is %v, forced %v", p.again, p.force)
	}
	if p := plan(again, look(false), begin.Add(patience+time.Second)); len(p.force) != 1 {
		t.Fatalf("a node is given more than its time: %+v", p)
	}
	// Who wants it again has the time begin anew for the one after it.
	plan(again, look(true), begin.Add(patience+2*time.Second))
	stale := look(false)
	stale.present[name].Annotations = map[string]string{unwantedSince: begin.Format(time.RFC3339)}
	lagging := begun()
	wanted := look(true)
	wanted.present[name].Annotations = stale.present[name].Annotations
	plan(lagging, wanted, begin.Add(2*patience))
	if p := plan(lagging, stale, begin.Add(2*patience)); len(p.force) > 0 {
		t.Fatal("a cache that lags has a volume detached too early")
	}
	if p := plan(begun(), look(false), begin.Add(2*patience)); len(p.force) > 0 {
		t.Fatal("a volume that was wanted again is detached by the time of before")
	}
	// A clock that was ahead, or somebody's nonsense, is not believed.
	for _, text := range []string{begin.Add(1000 * time.Hour).Format(time.RFC3339), "yesterday"} {
		at := look(false).present[name]
		at.Annotations = map[string]string{unwantedSince: text}
		if _, ok := noted(at, begin); ok {
			t.Errorf("%q is believed", text)
		}
	}
}

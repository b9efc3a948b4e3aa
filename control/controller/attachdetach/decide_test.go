package attachdetach

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDecide plans for a node in each of the states that one volume can be in there.
func TestDecide(t *testing.T) {
	now := time.Now()
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
		AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
	}}
	many := v.DeepCopy()
	many.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	name := attachmentName("h", "d", "n")
	node := func(ready corev1.ConditionStatus, inUse bool, taint string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		if inUse {
			n.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/d^h"}
		}
		if taint != "" {
			n.Spec.Taints = []corev1.Taint{{Key: taint}}
		}
		return n
	}
	attached := func(is, leaving bool) *storagev1.VolumeAttachment {
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: storagev1.VolumeAttachmentStatus{Attached: is}}
		if leaving {
			a.DeletionTimestamp = &metav1.Time{Time: now}
		}
		return a
	}
	healthy := node(corev1.ConditionTrue, false, "")
	for _, c := range []struct {
		name      string
		node      *corev1.Node
		wanted    *corev1.PersistentVolume
		there     *storagev1.VolumeAttachment
		elsewhere []string
		since     time.Duration
		want      string
		attached  bool
	}{
		{name: "wanted", node: healthy, wanted: v, want: "attach"},
		{name: "wanted, elsewhere", node: healthy, wanted: v, elsewhere: []string{"m"}, want: "refused"},
		{name: "wanted, elsewhere, for many", node: healthy, wanted: many, elsewhere: []string{"m"}, want: "attach"},
		{name: "being attached", node: healthy, wanted: v, there: attached(false, false)},
		{name: "attached", node: healthy, wanted: v, there: attached(true, false), attached: true},
		{name: "wanted again", node: healthy, wanted: v, there: attached(true, true)},
		{name: "unwanted", node: healthy, there: attached(true, false), want: "detach"},
		{name: "unwanted, mounted", node: node(corev1.ConditionTrue, true, ""), there: attached(true, false), since: time.Hour, attached: true},
		{name: "unwanted, mounted, not ready", node: node(corev1.ConditionUnknown, true, ""), there: attached(true, false), want: "wait", attached: true},
		{
			name: "unwanted, mounted, not ready for long", node: node(corev1.ConditionUnknown, true, ""), there: attached(true, false),
			since: patience, want: "force",
		},
		{name: "out of service", node: node(corev1.ConditionUnknown, true, outOfService), there: attached(true, false), want: "force"},
		{name: "no node", there: attached(true, false), want: "wait", attached: true},
		{name: "no node for long", there: attached(true, false), since: patience, want: "force"},
		{name: "detached", node: healthy, there: attached(true, true)},
	} {
		s := state{
			name: "n", node: c.node, wanted: map[string]wish{}, present: map[string]*storagev1.VolumeAttachment{},
			volumes: map[string]*corev1.PersistentVolume{name: v}, elsewhere: map[string][]string{name: c.elsewhere},
		}
		if c.wanted != nil {
			s.wanted[name] = wish{volume: c.wanted}
		}
		if c.there != nil {
			s.present[name] = c.there
		}
		p := decide(s, func(string) time.Time { return now.Add(-c.since) }, now)
		got := ""
		for what, names := range map[string][]string{"attach": p.attach, "refused": p.refused, "detach": p.detach, "force": p.force} {
			if slices.Contains(names, name) {
				got += what
			}
		}
		if p.again > 0 {
			got += "wait"
		}
		if got != c.want || (len(p.attached) == 1) != c.attached {
			t.Errorf("%s: it is %q with %v attached, not %q", c.name, got, p.attached, c.want)
		}
	}
}

// TestAttachmentName is the name that nodes look for.
func TestAttachmentName(t *testing.T) {
	const want = "csi-9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d"
	if got := attachmentName("h", "d", "n"); got != want {
		t.Errorf("it is %s", got)
	}
}

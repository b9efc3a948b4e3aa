package apiserver

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/object"
)

func sized(text string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
}

// TestLargerVolume hears of a claim that was made larger, and has its volume with it.
func TestLargerVolume(t *testing.T) {
	f := newFake()
	claim, volume := f.claimed()
	c := consume(t, f, func(c *Config) { c.pace.claim = 5 * time.Millisecond })
	c.waitPod("p", "u1")
	pv := object.RefTo(object.PersistentVolume, "", "v")
	c.wait("the volume is known", func() bool { return c.objects[pv] != nil })
	f.enlarge(claim, volume)
	c.wait("the volume is larger", func() bool { return isLarger(c.objects[pv]) })
}

func isLarger(o object.Object) bool {
	v, _ := o.(*corev1.PersistentVolume)
	return v != nil && v.Spec.Capacity.Storage().Value() == 2<<30
}

// TestLargerForNew has a new pod have a claim as it is, which another one has had for long.
func TestLargerForNew(t *testing.T) {
	f := newFake()
	claim, volume := f.claimed()
	c := consume(t, f, nil)
	c.waitPod("p", "u1")
	pv := object.RefTo(object.PersistentVolume, "", "v")
	c.wait("the volume is known", func() bool { return c.objects[pv] != nil })
	f.enlarge(claim, volume)
	f.put("pods", podOn("node1", "q", "u2", claiming))
	c.waitPod("q", "u2")
	if o := c.objects[pv]; !isLarger(o) {
		t.Errorf("the pod has %+v", o)
	}
	f.remove("persistentvolumeclaims", "default", "c") // which is an answer, too
	f.put("pods", podOn("node1", "r", "u3", claiming))
	c.waitPod("r", "u3")
}

// claiming has a pod have a claim.
func claiming(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	}}}
}

// claimed has a pod with a claim and its volume.
func (f *fakeServer) claimed() (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default", UID: "c"}}
	claim.Spec.VolumeName, claim.Spec.Resources.Requests = "v", sized("1Gi")
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: sized("1Gi")}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v"}}
	volume.Spec.Capacity, volume.Spec.ClaimRef = sized("1Gi"), &corev1.ObjectReference{Namespace: "default", Name: "c", UID: "c"}
	f.put("persistentvolumeclaims", claim)
	f.put("persistentvolumes", volume)
	f.put("pods", podOn("node1", "p", "u1", claiming))
	return claim, volume
}

// enlarge has a volume and its claim be larger.
func (f *fakeServer) enlarge(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) {
	volume = volume.DeepCopy()
	volume.Spec.Capacity = sized("2Gi")
	f.put("persistentvolumes", volume)
	claim = claim.DeepCopy()
	claim.Spec.Resources.Requests, claim.Status.AllocatedResources = sized("2Gi"), sized("2Gi")
	f.put("persistentvolumeclaims", claim)
}

func TestGrowing(t *testing.T) {
	for _, r := range []struct {
		asked, has string
		status     corev1.ClaimResourceStatus
		want       bool
	}{
		{"1Gi", "1Gi", "", false},
		{"1Gi", "2Gi", "", false},
		{"2Gi", "1Gi", "", true},
		{"2Gi", "1Gi", corev1.PersistentVolumeClaimControllerResizeInProgress, true},
		{"2Gi", "1Gi", corev1.PersistentVolumeClaimNodeResizePending, true},
		{"1Gi", "1Gi", corev1.PersistentVolumeClaimNodeResizeInProgress, true},
		{"2Gi", "1Gi", corev1.PersistentVolumeClaimControllerResizeInfeasible, false},
		{"2Gi", "1Gi", corev1.PersistentVolumeClaimNodeResizeInfeasible, false},
	} {
		c := &corev1.PersistentVolumeClaim{}
		c.Spec.Resources.Requests, c.Status.Capacity = sized(r.asked), sized(r.has)
		if r.status != "" {
			c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: r.status}
		}
		if got := growing(c); got != r.want {
			t.Errorf("%+v: %t", r, got)
		}
	}
	if growing(&corev1.PersistentVolume{}) {
		t.Error("a volume grows by itself")
	}
}

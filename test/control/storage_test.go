package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const testDriver = "csi.example.com"

func storageClaim(name, class, size string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
	if class != "none" {
		c.Spec.StorageClassName = &class
	}
	return c
}

func storageVolume(name, class, size string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}, StorageClassName: class,
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: name}},
		},
	}
}

func storageClass(name, provisioner string, mode storagev1.VolumeBindingMode, isDefault bool) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
	if isDefault {
		c.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	}
	return c
}

// storage is a test's hands on claims and volumes.
type storage struct {
	t      *testing.T
	client kubernetes.Interface
}

func (s storage) must(_ any, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s storage) claim(c *corev1.PersistentVolumeClaim) {
	s.t.Helper()
	s.must(s.client.CoreV1().PersistentVolumeClaims("default").Create(s.t.Context(), c, metav1.CreateOptions{}))
}

func (s storage) volume(v *corev1.PersistentVolume) {
	s.t.Helper()
	s.must(s.client.CoreV1().PersistentVolumes().Create(s.t.Context(), v, metav1.CreateOptions{}))
}

func (s storage) class(c *storagev1.StorageClass) {
	s.t.Helper()
	s.must(s.client.StorageV1().StorageClasses().Create(s.t.Context(), c, metav1.CreateOptions{}))
}

// claimIs waits until a claim is in a phase, with a volume.
func (s storage) claimIs(name string, phase corev1.PersistentVolumeClaimPhase, volume string) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	var c *corev1.PersistentVolumeClaim
	until(s.t, fmt.Sprintf("claim %s is %s with %q", name, phase, volume), func() (err error) {
		c, err = s.client.CoreV1().PersistentVolumeClaims("default").Get(s.t.Context(), name, metav1.GetOptions{})
		if err == nil && (c.Status.Phase != phase || c.Spec.VolumeName != volume) {
			err = fmt.Errorf("it is %s with %q", c.Status.Phase, c.Spec.VolumeName)
		}
		return err
	})
	return c
}

func (s storage) volumeIs(name string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
	s.t.Helper()
	var v *corev1.PersistentVolume
	until(s.t, fmt.Sprintf("volume %s is %s", name, phase), func() (err error) {
		v, err = s.client.CoreV1().PersistentVolumes().Get(s.t.Context(), name, metav1.GetOptions{})
		if err == nil && v.Status.Phase != phase {
			err = fmt.Errorf("it is %s: %s", v.Status.Phase, v.Status.Message)
		}
		return err
	})
	return v
}

func (s storage) claimGone(name string) {
	s.t.Helper()
	until(s.t, "claim "+name+" is gone", func() error {
		c, err := s.client.CoreV1().PersistentVolumeClaims("default").Get(s.t.Context(), name, metav1.GetOptions{})
		return gone(err, c)
	})
}

func gone(err error, o any) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("it is there: %+v, %w", o, err)
}

func (s storage) deleteClaim(name string) {
	s.t.Helper()
	s.must(nil, s.client.CoreV1().PersistentVolumeClaims("default").Delete(s.t.Context(), name, metav1.DeleteOptions{}))
}

// told waits for an event of an object.
func (s storage) told(name, reason, message string) {
	s.t.Helper()
	until(s.t, "event "+reason+" of "+name, func() error {
		all, err := s.client.CoreV1().Events("").List(s.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return err
		}
		var has []string
		for _, e := range all.Items {
			if e.Reason == reason && strings.Contains(e.Message, message) {
				return nil
			}
			has = append(has, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("there are %q", has)
	})
}

// provisions makes the volumes of claims that ask a driver for them, and deletes those that are released, until the
// test ends: what the external provisioner does.
func (s storage) provisions(ctx context.Context) {
	w, err := s.client.CoreV1().PersistentVolumeClaims("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Error(err)
		return
	}
	defer w.Stop()
	v, err := s.client.CoreV1().PersistentVolumes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Error(err)
		return
	}
	defer v.Stop()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return
			}
			c, is := e.Object.(*corev1.PersistentVolumeClaim)
			if !is || c.Annotations["volume.kubernetes.io/storage-provisioner"] != testDriver || c.Spec.VolumeName != "" || c.DeletionTimestamp != nil {
				continue
			}
			p := storageVolume("pvc-"+string(c.UID), *c.Spec.StorageClassName, "1Gi")
			p.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": testDriver}
			p.Spec.Capacity, p.Spec.AccessModes = c.Spec.Resources.Requests, c.Spec.AccessModes
			p.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
			p.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace, Name: c.Name, UID: c.UID}
			if _, err := s.client.CoreV1().PersistentVolumes().Create(ctx, p, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
				s.t.Errorf("make volume: %v", err)
			}
		case e, ok := <-v.ResultChan():
			if !ok {
				return
			}
			p, is := e.Object.(*corev1.PersistentVolume)
			if !is || p.Status.Phase != corev1.VolumeReleased || p.DeletionTimestamp != nil ||
				p.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || p.Annotations["pv.kubernetes.io/provisioned-by"] != testDriver {
				continue
			}
			if err := s.client.CoreV1().PersistentVolumes().Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				s.t.Errorf("delete volume: %v", err)
			}
		}
	}
}

// TestClaims has claims of all kinds find their volumes, wait for them, lose them, and go.
func TestClaims(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	s := storage{t, p.client}

	// The smallest volume that fits, and the one that is meant for a claim before any other.
	for name, size := range map[string]string{"small": "1Gi", "large": "9Gi", "fit": "3Gi"} {
		s.volume(storageVolume(name, "static", size))
	}
	meant := storageVolume("meant", "static", "20Gi")
	meant.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "chosen"}
	s.volume(meant)
	s.volumeIs("meant", corev1.VolumeAvailable)
	s.volumeIs("fit", corev1.VolumeAvailable)
	s.claim(storageClaim("two", "static", "2Gi"))
	s.claim(storageClaim("chosen", "static", "1Gi"))
	if c := s.claimIs("two", corev1.ClaimBound, "fit"); c.Status.Capacity.Storage().String() != "3Gi" || c.Annotations["pv.kubernetes.io/bound-by-controller"] != "yes" {
		t.Errorf("the claim has %v and %v", c.Status.Capacity, c.Annotations)
	}
	s.claimIs("chosen", corev1.ClaimBound, "meant")
	if v := s.volumeIs("meant", corev1.VolumeBound); v.Spec.ClaimRef.UID == "" || v.Annotations["pv.kubernetes.io/bound-by-controller"] != "" || v.Status.LastPhaseTransitionTime == nil {
		t.Errorf("the volume has %v, %v and %v", v.Spec.ClaimRef, v.Annotations, v.Status)
	}

	// A claim that asks for a volume by name waits for it, and a claim that fits nothing for one that does.
	named := storageClaim("named", "static", "1Gi")
	named.Spec.VolumeName = "late"
	s.claim(named)
	s.claim(storageClaim("huge", "static", "1Ti"))
	s.told("huge", "ProvisioningFailed", `storageclass.storage.k8s.io "static" not found`)
	s.volume(storageVolume("late", "static", "1Gi"))
	s.volume(storageVolume("vast", "static", "2Ti"))
	s.claimIs("named", corev1.ClaimBound, "late")
	s.claimIs("huge", corev1.ClaimBound, "vast")

	// Retain, and used again; Recycle is refused.
	s.deleteClaim("two")
	s.claimGone("two")
	released := s.volumeIs("fit", corev1.VolumeReleased)
	released.Spec.ClaimRef = nil
	s.must(p.client.CoreV1().PersistentVolumes().Update(t.Context(), released, metav1.UpdateOptions{}))
	s.volumeIs("fit", corev1.VolumeAvailable)
	old := storageVolume("old", "old", "1Gi")
	old.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRecycle
	old.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "192.0.2.1", Path: "/"}}
	s.volume(old)
	s.claim(storageClaim("recycled", "old", "1Gi"))
	s.claimIs("recycled", corev1.ClaimBound, "old")
	s.deleteClaim("recycled")
	s.volumeIs("old", corev1.VolumeFailed)
	s.told("old", "VolumeFailedRecycle", "No recycler plugin found")

	// A volume that is bound stays when it is deleted, until it is not; a claim whose volume is gone is lost.
	s.must(nil, p.client.CoreV1().PersistentVolumes().Delete(t.Context(), "vast", metav1.DeleteOptions{}))
	vast, err := p.client.CoreV1().PersistentVolumes().Get(t.Context(), "vast", metav1.GetOptions{})
	if err != nil || vast.DeletionTimestamp == nil || !slices.Contains(vast.Finalizers, "kubernetes.io/pv-protection") {
		t.Fatalf("the volume is %+v, %v", vast, err)
	}
	// Its controllers may write it meanwhile.
	s.must(p.client.CoreV1().PersistentVolumes().Patch(t.Context(), "vast", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))
	s.claimIs("huge", corev1.ClaimLost, "vast")
	s.told("huge", "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
}

// TestProvisioning has claims ask the provisioner of their class, at once, or when a pod has a node.
func TestProvisioning(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	s := storage{t, p.client}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	go func() { defer close(ended); s.provisions(ctx) }()

	// A claim that no class is known for waits for a default one.
	s.claim(storageClaim("classless", "none", "1Gi"))
	s.told("classless", "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	s.class(storageClass("fast", testDriver, storagev1.VolumeBindingImmediate, true))
	c := s.claimIs("classless", corev1.ClaimBound, "pvc-"+string(s.claimUID("classless")))
	if c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != "fast" {
		t.Errorf("the class of the claim is %v", c.Spec.StorageClassName)
	}
	s.told("classless", "ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner '"+testDriver+"'")
	s.deleteClaim("classless")
	until(t, "the volume is deleted", func() error {
		all, err := p.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
		if err == nil && len(all.Items) > 0 {
			err = fmt.Errorf("there are %d, %s", len(all.Items), all.Items[0].Status.Phase)
		}
		return err
	})

	// The other mode waits for a pod, and then for its node.
	s.class(storageClass("late", testDriver, storagev1.VolumeBindingWaitForFirstConsumer, false))
	s.claim(storageClaim("waits", "late", "1Gi"))
	s.told("waits", "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
	p.equipped(t, "default")
	s.must(p.client.CoreV1().Pods("default").Create(t.Context(), claiming("consumer", "waits"), metav1.CreateOptions{}))
	s.told("waits", "WaitForPodScheduled", "waiting for pod consumer to be scheduled")
	w := s.claimIs("waits", corev1.ClaimPending, "")
	if w.Annotations["volume.kubernetes.io/storage-provisioner"] != "" {
		t.Errorf("the provisioner was asked already: %v", w.Annotations)
	}
	chosen := []byte(`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"somewhere"}}}`)
	s.must(p.client.CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), "waits", types.MergePatchType, chosen, metav1.PatchOptions{}))
	s.claimIs("waits", corev1.ClaimBound, "pvc-"+string(w.UID))
	s.class(storageClass("manual", "kubernetes.io/no-provisioner", storagev1.VolumeBindingImmediate, false))
	s.claim(storageClaim("manual", "manual", "1Gi"))
	s.told("manual", "ProvisioningFailed", "no volume plugin matched name: kubernetes.io/no-provisioner")
}

func (s storage) claimUID(name string) string {
	c, err := s.client.CoreV1().PersistentVolumeClaims("default").Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return string(c.UID)
}

// claiming is a pod that uses a claim.
func claiming(name, claim string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "i"}},
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}},
	}}
}

// TestProtection has claims and attributes stay while they are used, and ephemeral volumes come and belong to pods.
func TestProtection(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	s := storage{t, p.client}
	p.hollow(t, "a")
	p.equipped(t, "default")
	pods := p.client.CoreV1().Pods("default")
	s.must(p.client.StorageV1().VolumeAttributesClasses().Create(t.Context(),
		&storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: testDriver, Parameters: map[string]string{"k": "v"}}, metav1.CreateOptions{}))
	c, gold := storageClaim("used", "x", "1Gi"), "gold"
	c.Spec.VolumeAttributesClassName = &gold
	s.claim(c)
	s.must(pods.Create(t.Context(), claiming("user", "used"), metav1.CreateOptions{}))
	until(t, "the pod has a node", func() error {
		o, err := pods.Get(t.Context(), "user", metav1.GetOptions{})
		if err == nil && o.Spec.NodeName == "" {
			err = fmt.Errorf("it has none")
		}
		return err
	})
	s.deleteClaim("used")
	s.must(nil, p.client.StorageV1().VolumeAttributesClasses().Delete(t.Context(), "gold", metav1.DeleteOptions{}))
	// Another claim comes and goes meanwhile: by then the first one has been looked at.
	s.claim(storageClaim("other", "x", "1Gi"))
	s.deleteClaim("other")
	s.claimGone("other")
	for what, get := range map[string]func() error{
		"claim": func() error {
			_, err := p.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "used", metav1.GetOptions{})
			return err
		},
		"class": func() error {
			_, err := p.client.StorageV1().VolumeAttributesClasses().Get(t.Context(), "gold", metav1.GetOptions{})
			return err
		},
	} {
		if err := get(); err != nil {
			t.Errorf("the %s has not stayed: %v", what, err)
		}
	}
	s.must(nil, pods.Delete(t.Context(), "user", metav1.DeleteOptions{}))
	s.claimGone("used")
	until(t, "the class is gone", func() error {
		o, err := p.client.StorageV1().VolumeAttributesClasses().Get(t.Context(), "gold", metav1.GetOptions{})
		return gone(err, o)
	})

	// A claim that is in the way of an ephemeral volume is left alone, and the pod says so.
	s.claim(storageClaim("e-data", "x", "1Gi"))
	e := claiming("e", "")
	e.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"k": "v"}}, Spec: storageClaim("", "x", "1Gi").Spec,
		},
	}}
	made, err := pods.Create(t.Context(), e, metav1.CreateOptions{})
	s.must(nil, err)
	s.told("e", "FailedBinding", "ephemeral volume data:")
	s.deleteClaim("e-data")
	until(t, "the claim is the pod's", func() error {
		o, err := p.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "e-data", metav1.GetOptions{})
		if err == nil && (!metav1.IsControlledBy(o, made) || o.Labels["k"] != "v") {
			err = fmt.Errorf("it has %+v", o.ObjectMeta)
		}
		return err
	})
}

// TestAttaching has volumes attached to the nodes of their pods, to one at a time where only one may have them, and
// detached when they are unmounted there, or when nobody will say so any more.
func TestAttaching(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	s := storage{t, p.client}
	p.hollow(t, "a", "b")
	p.equipped(t, "default")
	nodes, attachments := p.client.CoreV1().Nodes(), p.client.StorageV1().VolumeAttachments()
	patch := func(node, text string, part ...string) {
		t.Helper()
		s.must(nodes.Patch(t.Context(), node, "application/strategic-merge-patch+json", []byte(text), metav1.PatchOptions{}, part...))
	}
	for _, n := range []string{"a", "b"} {
		patch(n, `{"metadata":{"annotations":{"volumes.kubernetes.io/controller-managed-attach-detach":"true"}}}`)
	}
	s.volume(storageVolume("disk", "static", "1Gi"))
	s.claim(storageClaim("disk", "static", "1Gi"))
	s.claimIs("disk", corev1.ClaimBound, "disk")
	run := func(name, node string) {
		t.Helper()
		o := claiming(name, "disk")
		o.Spec.NodeName = node
		s.must(p.client.CoreV1().Pods("default").Create(t.Context(), o, metav1.CreateOptions{}))
	}
	// on waits for the attachment to a node, which is asked for, and has it be done.
	on := func(node string) *storagev1.VolumeAttachment {
		t.Helper()
		var at *storagev1.VolumeAttachment
		until(t, "the attachment to node "+node, func() error {
			all, err := attachments.List(t.Context(), metav1.ListOptions{})
			for i := range all.Items {
				if all.Items[i].Spec.NodeName == node {
					at = &all.Items[i]
					return nil
				}
			}
			return fmt.Errorf("there are %d: %w", len(all.Items), err)
		})
		return at
	}
	attach := func(node string) {
		t.Helper()
		at := on(node)
		at.Status.Attached = true
		s.must(attachments.UpdateStatus(t.Context(), at, metav1.UpdateOptions{}))
		until(t, "the status of node "+node+" has the volume", func() error {
			n, err := nodes.Get(t.Context(), node, metav1.GetOptions{})
			if err == nil && (len(n.Status.VolumesAttached) != 1 || n.Status.VolumesAttached[0].Name != "kubernetes.io/csi/"+testDriver+"^disk") {
				err = fmt.Errorf("it has %v", n.Status.VolumesAttached)
			}
			return err
		})
	}
	run("first", "a")
	attach("a")
	s.told("first", "SuccessfulAttachVolume", `AttachVolume.Attach succeeded for volume "disk"`)
	patch("a", `{"status":{"volumesInUse":["kubernetes.io/csi/`+testDriver+`^disk"]}}`, "status")

	// Another node waits while the first one has it mounted, though its pod is gone.
	run("second", "b")
	s.told("second", "FailedAttachVolume", `Multi-Attach error for volume "disk" Volume is already used by pod(s) first`)
	s.must(nil, p.client.CoreV1().Pods("default").Delete(t.Context(), "first", metav1.DeleteOptions{}))
	until(t, "the first pod is gone", func() error {
		o, err := p.client.CoreV1().Pods("default").Get(t.Context(), "first", metav1.GetOptions{})
		return gone(err, o)
	})
	if at := on("a"); at.DeletionTimestamp != nil {
		t.Error("the volume is detached while it is mounted")
	}
	patch("a", `{"status":{"volumesInUse":null}}`, "status")
	attach("b")

	// A node that is out of service is not asked.
	patch("b", `{"status":{"volumesInUse":["kubernetes.io/csi/`+testDriver+`^disk"]}}`, "status")
	s.must(nil, p.client.CoreV1().Pods("default").Delete(t.Context(), "second", metav1.DeleteOptions{}))
	patch("b", `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]}}`)
	until(t, "the volume is detached", func() error {
		all, err := attachments.List(t.Context(), metav1.ListOptions{})
		if err == nil && len(all.Items) > 0 {
			err = fmt.Errorf("there are %d", len(all.Items))
		}
		return err
	})
	until(t, "the status of the node has no volume", func() error {
		n, err := nodes.Get(t.Context(), "b", metav1.GetOptions{})
		if err == nil && len(n.Status.VolumesAttached) > 0 {
			err = fmt.Errorf("it has %v", n.Status.VolumesAttached)
		}
		return err
	})
}

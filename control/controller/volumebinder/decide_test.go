package volumebinder

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// model is a cluster's storage without a server.
type model struct {
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	classes map[string]*storagev1.StorageClass
	pods    []string
}

func (m *model) claim(_, name string) *corev1.PersistentVolumeClaim { return m.claims[name] }
func (m *model) volume(name string) *corev1.PersistentVolume        { return m.volumes[name] }
func (m *model) class(name string) *storagev1.StorageClass          { return m.classes[name] }
func (m *model) waiting(*corev1.PersistentVolumeClaim) []string     { return m.pods }

func (m *model) candidates(class string) []*corev1.PersistentVolume {
	var all []*corev1.PersistentVolume
	for _, v := range m.volumes {
		if v.Spec.StorageClassName == class {
			all = append(all, v)
		}
	}
	return all
}

func (m *model) defaultClass() *storagev1.StorageClass {
	for _, c := range m.classes {
		if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			return c
		}
	}
	return nil
}

func aClaim(name, class string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name), Annotations: map[string]string{}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func aVolume(name, class, size string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: class,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func ref(name string, uid types.UID) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "n", Name: name, UID: uid}
	}
}

func policy(p corev1.PersistentVolumeReclaimPolicy, by string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = p
		if by != "" {
			v.Annotations[volume.AnnDynamicallyProvisioned] = by
		}
	}
}

func named(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = name }
}

func done(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnBindCompleted] = "yes" }

func aClass(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}, Provisioner: provisioner, VolumeBindingMode: &mode}
}

// TestForClaim decides on claims in each of their states.
func TestForClaim(t *testing.T) {
	const now, late = storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	selected := func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "node" }
	block := func(v *corev1.PersistentVolume) { m := corev1.PersistentVolumeBlock; v.Spec.VolumeMode = &m }
	for _, c := range []struct {
		name    string
		claim   *corev1.PersistentVolumeClaim
		volumes []*corev1.PersistentVolume
		class   *storagev1.StorageClass
		act     act
		volume  string
		reason  string
	}{
		{
			name: "the smallest that fits", claim: aClaim("c", "s"), act: bind, volume: "b",
			volumes: []*corev1.PersistentVolume{aVolume("a", "s", "1Gi"), aVolume("b", "s", "2Gi"), aVolume("c", "s", "3Gi")},
		},
		{
			name: "another class, mode, or claim", claim: aClaim("c", "s"), act: pend, reason: "ProvisioningFailed",
			volumes: []*corev1.PersistentVolume{aVolume("a", "x", "2Gi"), aVolume("b", "s", "2Gi", block), aVolume("c", "s", "2Gi", ref("x", ""))},
		},
		{
			name: "meant for it", claim: aClaim("c", "s"), act: bind, volume: "b",
			volumes: []*corev1.PersistentVolume{aVolume("a", "s", "2Gi"), aVolume("b", "s", "9Gi", ref("c", ""))},
		},
		{name: "no class", claim: aClaim("c", ""), act: pend, reason: "FailedBinding"},
		{name: "a provisioner", claim: aClaim("c", "s"), class: aClass("s", "d", now), act: provision, reason: "ExternalProvisioning"},
		{name: "no provisioner", claim: aClaim("c", "s"), class: aClass("s", volume.NotSupportedProvisioner, now), act: pend, reason: "ProvisioningFailed"},
		{
			name: "waits", claim: aClaim("c", "s"), class: aClass("s", "d", late), act: pend, reason: "WaitForFirstConsumer",
			volumes: []*corev1.PersistentVolume{aVolume("a", "s", "2Gi")},
		},
		{
			name: "waits, but one is meant for it", claim: aClaim("c", "s"), class: aClass("s", "d", late), act: bind, volume: "a",
			volumes: []*corev1.PersistentVolume{aVolume("a", "s", "2Gi", ref("c", ""))},
		},
		{name: "waited", claim: aClaim("c", "s", selected), class: aClass("s", "d", late), act: provision, reason: "ExternalProvisioning"},
		{name: "named, not there", claim: aClaim("c", "s", named("v")), act: pend},
		{name: "named", claim: aClaim("c", "s", named("v")), act: bind, volume: "v", volumes: []*corev1.PersistentVolume{aVolume("v", "s", "2Gi")}},
		{
			name: "named, too small", claim: aClaim("c", "s", named("v")), act: pend, reason: "VolumeMismatch",
			volumes: []*corev1.PersistentVolume{aVolume("v", "s", "1Gi")},
		},
		{
			name: "named, another's", claim: aClaim("c", "s", named("v")), act: pend, reason: "FailedBinding",
			volumes: []*corev1.PersistentVolume{aVolume("v", "s", "2Gi", ref("x", "x"))},
		},
		{
			name: "bound", claim: aClaim("c", "s", named("v"), done), act: bind, volume: "v",
			volumes: []*corev1.PersistentVolume{aVolume("v", "s", "2Gi", ref("c", "c"))},
		},
		{name: "bound, gone", claim: aClaim("c", "s", named("v"), done), act: lose, reason: "ClaimLost"},
		{name: "bound, no name", claim: aClaim("c", "s", done), act: lose, reason: "ClaimLost"},
		{
			name: "bound, another's", claim: aClaim("c", "s", named("v"), done), act: lose, reason: "ClaimMisbound",
			volumes: []*corev1.PersistentVolume{aVolume("v", "s", "2Gi", ref("c", "another"))},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &model{volumes: map[string]*corev1.PersistentVolume{}, classes: map[string]*storagev1.StorageClass{}}
			for _, v := range c.volumes {
				m.volumes[v.Name] = v
			}
			if c.class != nil {
				m.classes[c.class.Name] = c.class
			}
			got, err := forClaim(m, c.claim)
			if err != nil {
				t.Fatal(err)
			}
			name := ""
			if got.volume != nil {
				name = got.volume.Name
			}
			if got.act != c.act || name != c.volume || got.tell.reason != c.reason {
				t.Errorf("it is %d of %q for %q, not %d of %q for %q", got.act, name, got.tell.reason, c.act, c.volume, c.reason)
			}
		})
	}
}

// TestForVolume decides on volumes in each of their states.
func TestForVolume(t *testing.T) {
	const remove, retain = corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain
	local := func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/v"}}
	}
	m := &model{claims: map[string]*corev1.PersistentVolumeClaim{
		"open": aClaim("open", "s"), "mine": aClaim("mine", "s", named("v")), "other": aClaim("other", "s", named("x")),
	}}
	for _, c := range []struct {
		name   string
		volume *corev1.PersistentVolume
		act    act
		reason string
	}{
		{"free", aVolume("v", "s", "1Gi"), free, ""},
		{"meant for a claim", aVolume("v", "s", "1Gi", ref("open", "")), free, ""},
		{"given to a claim", aVolume("v", "s", "1Gi", ref("open", "open")), askClaim, ""},
		{"bound", aVolume("v", "s", "1Gi", ref("mine", "mine")), keep, ""},
		{"its claim has another", aVolume("v", "s", "1Gi", ref("other", "other")), unbind, ""},
		{"made for a claim that has another", aVolume("v", "s", "1Gi", ref("other", "other"), policy(remove, "d")), release, ""},
		{"its claim is gone", aVolume("v", "s", "1Gi", ref("gone", "gone"), policy(retain, "")), release, ""},
		{"its claim was made again", aVolume("v", "s", "1Gi", ref("mine", "before"), policy(retain, "")), release, ""},
		{"deleted by who made it", aVolume("v", "s", "1Gi", ref("gone", "gone"), policy(remove, "d"), local), release, ""},
		{"deleted by its driver", aVolume("v", "s", "1Gi", ref("gone", "gone"), policy(remove, "")), release, ""},
		{"nobody deletes it", aVolume("v", "s", "1Gi", ref("gone", "gone"), policy(remove, ""), local), fail, "VolumeFailedDelete"},
		{"recycled", aVolume("v", "s", "1Gi", ref("gone", "gone"), policy(corev1.PersistentVolumeReclaimRecycle, "")), fail, "VolumeFailedRecycle"},
		{"unknown", aVolume("v", "s", "1Gi", ref("gone", "gone"), policy("x", "")), fail, "VolumeUnknownReclaimPolicy"},
	} {
		if got := forVolume(m, c.volume); got.act != c.act || got.tell.reason != c.reason {
			t.Errorf("%s: it is %d for %q, not %d for %q", c.name, got.act, got.tell.reason, c.act, c.reason)
		}
	}
}

// TestBindingConverges binds claims and volumes in any order, with a crash after any write, and claims and volumes that
// come and go: in the end each bound claim and its volume name each other, and no two claims have one volume.
func TestBindingConverges(t *testing.T) {
	seed := rand.Uint64()
	for i := range 150 {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		m := &model{claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{}}
		for range 40 {
			m.happen(r)
			m.settle(t, r, r.IntN(6))
		}
		m.settle(t, r, 1000)
		owner := map[string]string{}
		for name, c := range m.claims {
			v := m.volumes[c.Spec.VolumeName]
			if c.Status.Phase != corev1.ClaimBound {
				continue
			}
			if v == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID || v.Status.Phase != corev1.VolumeBound || owner[v.Name] != "" {
				t.Fatalf("seed %d, history %d: claim %s has volume %+v of %q", seed, i, name, v, owner[c.Spec.VolumeName])
			}
			owner[v.Name] = name
		}
		for name, v := range m.volumes {
			if ref := v.Spec.ClaimRef; v.Status.Phase == corev1.VolumeBound && owner[name] == "" {
				t.Fatalf("seed %d, history %d: volume %s is bound to %v, which has it not", seed, i, name, ref)
			}
		}
	}
}

// happen is what users do.
func (m *model) happen(r *rand.Rand) {
	name := fmt.Sprint(r.IntN(5))
	switch r.IntN(5) {
	case 0, 1:
		if m.claims[name] == nil {
			m.claims[name] = aClaim(name, "s", func(c *corev1.PersistentVolumeClaim) {
				c.UID = types.UID(fmt.Sprint(r.Uint64()))
				if r.IntN(4) == 0 {
					c.Spec.VolumeName = fmt.Sprint(r.IntN(5))
				}
			})
		}
	case 2, 3:
		if m.volumes[name] == nil {
			m.volumes[name] = aVolume(name, "s", "2Gi", func(v *corev1.PersistentVolume) {
				if r.IntN(4) == 0 {
					v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "n", Name: fmt.Sprint(r.IntN(5))}
				}
			})
		}
	default:
		delete(m.claims, name)
	}
}

// settle does so many of the acts that are decided, of bind only a part.
func (m *model) settle(t *testing.T, r *rand.Rand, acts int) {
	t.Helper()
	for range acts {
		name := fmt.Sprint(r.IntN(5))
		if c := m.claims[name]; c != nil && r.IntN(2) == 0 {
			v, err := forClaim(m, c)
			if err != nil {
				t.Fatal(err)
			}
			m.apply(t, v, r.IntN(5))
		} else if v := m.volumes[name]; v != nil {
			m.apply(t, forVolume(m, v), 4)
		}
	}
}

func (m *model) apply(t *testing.T, d verdict, writes int) {
	t.Helper()
	switch d.act {
	case bind:
		v, _, err := volume.GetBindVolumeToClaim(d.volume, d.claim)
		if err != nil {
			t.Fatal(err)
		}
		c := d.claim.DeepCopy()
		if writes > 0 {
			m.volumes[v.Name] = v
		}
		if writes > 1 {
			v.Status.Phase = corev1.VolumeBound
		}
		if writes > 2 {
			c.Spec.VolumeName = v.Name
			done(c)
			m.claims[c.Name] = c
		}
		if writes > 3 {
			c.Status.Phase = corev1.ClaimBound
		}
	case pend:
		d.claim.Status.Phase = corev1.ClaimPending
	case lose:
		d.claim.Status.Phase = corev1.ClaimLost
	case free:
		d.volume.Status.Phase = corev1.VolumeAvailable
	case keep:
		d.volume.Status.Phase = corev1.VolumeBound
	case release:
		d.volume.Status.Phase = corev1.VolumeReleased
	case unbind:
		if metav1.HasAnnotation(d.volume.ObjectMeta, volume.AnnBoundByController) {
			d.volume.Spec.ClaimRef = nil
			delete(d.volume.Annotations, volume.AnnBoundByController)
		} else {
			d.volume.Spec.ClaimRef.UID = ""
		}
	}
}

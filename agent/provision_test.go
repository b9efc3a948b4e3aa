package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/csi/provision"
)

func newProvisioner(t testing.TB, records ...string) *provisioner {
	t.Helper()
	p, _ := newProvisioning(t, t.TempDir(), records...)
	return p
}

// newProvisioning is a place that has the records.
func newProvisioning(t testing.TB, root string, records ...string) (*provisioner, *csiVolumes) {
	t.Helper()
	for _, r := range records {
		name := r[strings.Index(r, `"uid":"`)+len(`"uid":"`):]
		path := filepath.Join(root, provisionDir, "pvc-"+name[:strings.Index(name, `"`)]+".json")
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(r), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	c := csiSettings{place: config.Place{RootDir: root}, node: "n"}
	v, err := openCSI(c, new(object.Stores), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p, err := openProvisioner(provisionSettings{c.place, c.node, time.Hour, nil, event.NewRecorder("n")}, v, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p, v
}

const madeForA = `{"version":1,"kind":"volume","claim":{"Namespace":"default","Name":"a","uid":"uid-a","class":{"name":"fast","driver":"d"},` +
	`"bytes":5,"accessModes":["ReadWriteOnce"]},"handle":"h","bytes":5,"ready":true}`

func fastClass() desired.Update {
	policy, mode := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingImmediate
	return desired.Update{Kind: object.StorageClass, Key: types.NamespacedName{Name: "fast"}, Object: &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "d", ReclaimPolicy: &policy, VolumeBindingMode: &mode,
	}}
}

func fastClaim(name string) desired.Update {
	fast := "fast"
	return desired.Update{
		Kind: object.PersistentVolumeClaim, Key: types.NamespacedName{Namespace: "default", Name: name},
		Object: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &fast, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
		},
	}
}

func volumeFor(name, claim string) desired.Update {
	return desired.Update{Kind: object.PersistentVolume, Key: types.NamespacedName{Name: name}, Object: &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: claim}, StorageClassName: "fast",
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		},
	}}
}

// TestStepsBack wants a claim to have the PersistentVolume that a manifest has for it, and not what was made for it
// before.
func TestStepsBack(t *testing.T) {
	p := newProvisioner(t, madeForA)
	tell := func(all ...desired.Update) {
		for _, u := range all {
			p.stale = p.note(u) || p.stale
			p.objects.Put(u.Ref(), u.Object)
		}
		p.look()
		for _, u := range p.news() {
			p.objects.Put(u.Ref(), u.Object)
		}
	}
	has := func(want string) {
		t.Helper()
		if v, err := p.objects.Volume("default", "a"); err != nil || v.Name != want {
			t.Fatalf("got %v, %v", v, err)
		}
	}
	tell(fastClass(), fastClaim("a"), desired.Update{Synced: true})
	has("pvc-uid-a")
	byHand := volumeFor("by-hand", "a")
	tell(byHand)
	has("by-hand")
	byHand.Object = nil
	tell(byHand)
	has("pvc-uid-a")
	same := volumeFor("pvc-uid-a", "a")
	tell(same)
	has("pvc-uid-a")
	if v, _ := p.objects.Volume("default", "a"); v != same.Object {
		t.Error("what was made is shown in the place of a manifest's PersistentVolume")
	}
	same.Object = nil
	tell(same)
	has("pvc-uid-a")
	// A claim that names what was made for it has that.
	named := fastClaim("a")
	named.Object.(*corev1.PersistentVolumeClaim).Spec.VolumeName = "pvc-uid-a"
	tell(volumeFor("by-hand", "a"), named)
	has("pvc-uid-a")
}

// TestUnread wants claims to be known and served though nobody takes updates.
func TestUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvisioner(t)
		ctx, cancel := context.WithCancel(t.Context())
		in, out, ended := make(chan desired.Update), make(chan desired.Update), make(chan struct{})
		go func() { defer close(ended); p.relay(ctx, in, out) }()
		for _, u := range []desired.Update{fastClass(), {Synced: true}} {
			in <- u
			if got := <-out; got.Synced != u.Synced || got.Key != u.Key {
				t.Fatalf("got %+v", got)
			}
		}
		u := fastClaim("a")
		p.objects.Put(u.Ref(), u.Object)
		in <- u
		time.Sleep(time.Second)
		if _, err := p.objects.Volume("default", "a"); err == nil || !strings.Contains(err.Error(), "its volume is made by d") {
			t.Errorf("got %v", err)
		}
		if got := <-out; got.Key != u.Key {
			t.Errorf("got %+v", got)
		}
		cancel()
		<-ended
	})
}

// TestDefaultSnapshotClass wants a snapshot without a class to have the default one of its claim's driver at once.
func TestDefaultSnapshotClass(t *testing.T) {
	p := newProvisioner(t)
	claim := "a"
	for _, u := range []desired.Update{
		fastClass(), fastClaim(claim),
		{Kind: object.VolumeSnapshotClass, Key: types.NamespacedName{Name: "snap"}, Object: &snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: "snap", Annotations: map[string]string{defaultSnapshotClass: "true"}}, Driver: "d",
		}},
		{Kind: object.VolumeSnapshot, Key: types.NamespacedName{Namespace: "default", Name: "s"}, Object: &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"},
			Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
		}},
	} {
		p.note(u)
	}
	if s := p.snapshots(); len(s) != 1 || s[0].Held || s[0].Class.Name != "snap" {
		t.Errorf("got %+v", s)
	}
}

// TestGroupClaims wants a group snapshot to be of the claims that its selector has, in its namespace, with the default
// class of their driver; and claims to have the attributes of their class.
func TestGroupClaims(t *testing.T) {
	p := newProvisioner(t)
	together := func(name, app string) desired.Update {
		u := fastClaim(name)
		u.Object.SetLabels(map[string]string{"app": app})
		return u
	}
	gold, gone := "gold", "gone"
	golden, lost := fastClaim("golden"), fastClaim("lost")
	golden.Object.(*corev1.PersistentVolumeClaim).Spec.VolumeAttributesClassName = &gold
	lost.Object.(*corev1.PersistentVolumeClaim).Spec.VolumeAttributesClassName = &gone
	elsewhere := together("c", "db")
	elsewhere.Key.Namespace = "other"
	elsewhere.Object.SetNamespace("other")
	group := func(name string) desired.Update {
		return desired.Update{Kind: object.VolumeGroupSnapshot, Key: types.NamespacedName{Namespace: "default", Name: name}, Object: &groupsnapshotv1.VolumeGroupSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: groupsnapshotv1.VolumeGroupSnapshotSpec{Source: groupsnapshotv1.VolumeGroupSnapshotSource{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			}},
		}}
	}
	named := group("named")
	named.Object.(*groupsnapshotv1.VolumeGroupSnapshot).Spec.VolumeGroupSnapshotClassName = &gone
	for _, u := range []desired.Update{
		fastClass(), together("b", "db"), together("a", "db"), together("x", "web"), elsewhere, golden, lost, group("g"), named,
		{Kind: object.VolumeGroupSnapshotClass, Key: types.NamespacedName{Name: "all"}, Object: &groupsnapshotv1.VolumeGroupSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: "all", Annotations: map[string]string{defaultGroupClass: "true"}}, Driver: "d",
		}},
		{Kind: object.VolumeAttributesClass, Key: types.NamespacedName{Name: gold}, Object: &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: gold}, DriverName: "d", Parameters: map[string]string{"iops": "9"},
		}},
	} {
		if !p.note(u) {
			t.Errorf("%s changes nothing", u.Ref())
		}
	}
	for _, g := range p.groups() {
		if !slices.Equal(g.Members, []string{"a", "b"}) || g.Held != (g.Name == "named") || !g.Held && g.Class.Name != "all" {
			t.Errorf("got %+v", g)
		}
	}
	for _, c := range p.volumes() {
		want := provision.Attributes{}
		switch c.Name {
		case "golden":
			want = provision.Attributes{Class: gold, Driver: "d", Parameters: map[string]string{"iops": "9"}}
		case "lost":
			want.Class = gone
		}
		if !reflect.DeepEqual(c.Attributes, want) {
			t.Errorf("%s: got %+v", c.Name, c.Attributes)
		}
	}
}

// BenchmarkRelay hands on claims that come one by one, as at the start of an agent and after it.
func BenchmarkRelay(b *testing.B) {
	for _, n := range []int{500, 2000, 8000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				p := newProvisioner(b)
				ctx, cancel := context.WithCancel(b.Context())
				in, out, ended := make(chan desired.Update), make(chan desired.Update), make(chan struct{})
				go func() { defer close(ended); p.relay(ctx, in, out) }()
				for i := range n {
					if i == n/2 {
						in <- desired.Update{Synced: true}
						<-out
					}
					in <- fastClaim(strconv.Itoa(i))
					<-out
				}
				cancel()
				<-ended
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/claim")
		})
	}
}

// TestClaimsThatStay wants a claim that is in a manifest to keep what was made for it, though nothing would be made for
// it any more.
func TestClaimsThatStay(t *testing.T) {
	p := newProvisioner(t)
	fast, gone, content := "fast", "gone", "content"
	policy, mode := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingImmediate
	has := func(k object.Kind, namespace, name string, o object.Object) {
		p.note(desired.Update{Kind: k, Key: types.NamespacedName{Namespace: namespace, Name: name}, Object: o})
	}
	claim := func(name string, s corev1.PersistentVolumeClaimSpec) {
		has(object.PersistentVolumeClaim, "default", name, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: s,
		})
	}
	has(object.StorageClass, "", fast, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: fast}, Provisioner: "d", ReclaimPolicy: &policy, VolumeBindingMode: &mode,
	})
	claim("made", corev1.PersistentVolumeClaimSpec{StorageClassName: &fast})
	claim("classless", corev1.PersistentVolumeClaimSpec{StorageClassName: &gone})
	claim("named", corev1.PersistentVolumeClaimSpec{StorageClassName: &fast, VolumeName: "pvc-x"})
	claim("selects", corev1.PersistentVolumeClaimSpec{StorageClassName: &fast, Selector: &metav1.LabelSelector{}})
	claim("bound", corev1.PersistentVolumeClaimSpec{StorageClassName: &fast})
	has(object.PersistentVolume, "", "by-hand", &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "by-hand"},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: "default", Name: "bound"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
		},
	})
	has(object.VolumeSnapshot, "default", "s", &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &content}},
	})
	volumes := p.volumes()
	if len(volumes) != 5 {
		t.Fatalf("got %+v", volumes)
	}
	for _, c := range volumes {
		if c.UID != provision.UID("n", "default", c.Name) || c.Held != (c.Name != "made") {
			t.Errorf("got %+v", c)
		}
	}
	if s := p.snapshots(); len(s) != 1 || !s[0].Held {
		t.Errorf("got %+v", s)
	}
	if h := p.handles(); !slices.Equal(h, []provision.Handle{{Kind: provision.Volume, Driver: "d", Handle: "h"}}) {
		t.Errorf("got %+v", h)
	}
}

// TestClaimsOfAnAPIServer: claims, pods and classes of an API server, under the names of a manifest's or others,
// neither have volumes made nor end those that manifests want.
func TestClaimsOfAnAPIServer(t *testing.T) {
	p := newProvisioner(t)
	of := func(u desired.Update) desired.Update {
		u.Origin = desired.API
		return u
	}
	gone := func(u desired.Update) desired.Update {
		u.Object, u.Pod = nil, nil
		return u
	}
	p.note(fastClass())
	p.note(fastClaim("a"))
	pod := desired.Update{Kind: object.Pod, Key: types.NamespacedName{Namespace: "default", Name: "p"}, Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		}},
	}}
	bound := fastClaim("a")
	bound.Object.(*corev1.PersistentVolumeClaim).Spec.VolumeName = "pv-1"
	for _, u := range []desired.Update{
		bound, gone(bound), fastClaim("b"), gone(fastClass()), volumeFor("x", "a"), pod, gone(fastClaim("a")),
	} {
		p.note(of(u))
		if got := p.volumes(); len(got) != 1 || got[0].Name != "a" || got[0].Held {
			t.Errorf("after %s: %+v", u.Ref(), got)
		}
	}
	named := volumeFor("y", "c")
	named.Object.(*corev1.PersistentVolume).Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}
	if p.note(of(named)); len(p.handles()) != 1 {
		t.Error("a volume that one of the API server's names would be deleted")
	}
	if p.note(of(gone(named))); len(p.handles()) != 0 {
		t.Error("it would never be")
	}
	if p.note(of(desired.Update{Synced: true})); !p.synced {
		t.Error("it is not heard that all was told")
	}
}

// TestEphemeralWithoutATemplate: a pod that no API server should have let be ends nothing.
func TestEphemeralWithoutATemplate(t *testing.T) {
	v := &corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	if c := object.ClaimOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, v); c.Name != "p-v" {
		t.Errorf("%+v", c)
	}
}

// TestProvisionEvents wants events of claims and snapshots to be about these, and of what is deleted about what was
// made.
func TestProvisionEvents(t *testing.T) {
	ring := event.NewRing(event.Config{})
	tell := provisionEvents{event.NewRecorder("n", ring)}
	of := provision.Event{Kind: provision.Volume, Claim: provision.Ref{Namespace: "default", Name: "a"}, UID: "u", Name: "pvc-u", Message: "m"}
	for _, e := range []struct {
		kind    provision.Kind
		made    bool
		warning bool
	}{
		{provision.Volume, false, true},
		{provision.Volume, true, false},
		{provision.Snapshot, false, false},
		{provision.Snapshot, true, true},
		{provision.Group, false, true},
		{provision.Group, true, false},
	} {
		of.Kind, of.Made, of.Warning = e.kind, e.made, e.warning
		of.Reason = "R" + strconv.Itoa(len(ring.List()))
		tell.record(of)
	}
	var got []string
	for _, e := range ring.List() {
		o := e.InvolvedObject
		got = append(got, strings.Join([]string{e.Namespace, o.APIVersion, o.Kind, o.Namespace, o.Name, string(o.UID), e.Type, e.Reason, e.Message}, " "))
	}
	want := []string{
		"default v1 PersistentVolumeClaim default a u Warning R0 m",
		"default v1 PersistentVolume  pvc-u pvc-u Normal R1 m",
		"default snapshot.storage.k8s.io/v1 VolumeSnapshot default a u Normal R2 m",
		"default snapshot.storage.k8s.io/v1 VolumeSnapshotContent  pvc-u pvc-u Warning R3 m",
		"default groupsnapshot.storage.k8s.io/v1 VolumeGroupSnapshot default a u Warning R4 m",
		"default groupsnapshot.storage.k8s.io/v1 VolumeGroupSnapshotContent  pvc-u pvc-u Normal R5 m",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/mount/mounttest"
	"github.com/berth-node/berth/internal/patience"
)

// Each source is of one kind at most, and each kind has a directory of its own.
func TestKinds(t *testing.T) {
	m := New(Config{Root: t.TempDir()})
	plugins := map[string]bool{}
	for _, k := range m.kinds {
		if name := k.Traits().Plugin; name == "" || plugins[name] {
			t.Errorf("%T: %q is no name, or another's", k, name)
		} else {
			plugins[name] = true
		}
	}
	made := map[string]string{}
	look := func(from, name string, s kind.Source) {
		var of []string
		for _, k := range m.kinds {
			if k.Makes(s) {
				of = append(of, k.Traits().Plugin)
			}
		}
		if len(of) > 1 {
			t.Errorf("%s %s is of the kinds %v", from, name, of)
		}
		if len(of) == 1 {
			made[from+" "+name] = of[0]
		}
	}
	pod := reflect.TypeFor[corev1.VolumeSource]()
	for i := range pod.NumField() {
		var s corev1.VolumeSource
		reflect.ValueOf(&s).Elem().Field(i).Set(reflect.New(pod.Field(i).Type.Elem()))
		look("pod", pod.Field(i).Name, kind.Source{Pod: &s})
	}
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}
	bound := reflect.TypeFor[corev1.PersistentVolumeSource]()
	for i := range bound.NumField() {
		var s corev1.PersistentVolumeSource
		reflect.ValueOf(&s).Elem().Field(i).Set(reflect.New(bound.Field(i).Type.Elem()))
		look("bound", bound.Field(i).Name, kind.Source{Pod: &claim, Bound: persistent(s, corev1.PersistentVolumeFilesystem)})
	}
	var mounted []desired.PersistentKind
	for f := range bound.Fields() {
		plugin, ok := made["bound "+f.Name]
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		of := slices.IndexFunc(m.kinds, func(k Kind) bool { return k.Traits().Plugin == plugin })
		mounted = append(mounted, desired.PersistentKind{Name: name, Block: m.kinds[of].Traits().Block})
	}
	byName := func(a, b desired.PersistentKind) int { return strings.Compare(a.Name, b.Name) }
	said := slices.SortedFunc(slices.Values(desired.PersistentKinds()), byName)
	if slices.SortFunc(mounted, byName); !slices.Equal(mounted, said) {
		t.Errorf("PersistentVolumes that are mounted are %v, and those that manifests may have %v", mounted, said)
	}
	want := map[string]string{
		"pod EmptyDir": "empty-dir", "pod HostPath": "host-path", "pod ConfigMap": "configmap", "pod Secret": "secret", "pod DownwardAPI": "downward-api",
		"pod Projected": "projected", "pod NFS": "nfs", "pod ISCSI": "iscsi", "pod CSI": "csi", "pod Image": "image",
		"bound HostPath": "host-path", "bound Local": "local-volume", "bound NFS": "nfs", "bound ISCSI": "iscsi", "bound CSI": "csi",
	}
	if !reflect.DeepEqual(made, want) {
		t.Errorf("kinds are %v\nwant %v", made, want)
	}
}

// What a kind needs of Secrets is asked of the kind alone.
func TestSecretsOfVolumes(t *testing.T) {
	m := New(Config{Root: t.TempDir()})
	inline := corev1.Volume{VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: &corev1.LocalObjectReference{Name: "s"}}}}
	claim := corev1.Volume{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}
	bound := persistent(corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
		SecretRef: &corev1.SecretReference{Name: "s", Namespace: "elsewhere"},
	}}, corev1.PersistentVolumeFilesystem)
	for _, c := range []struct {
		v     corev1.Volume
		bound *corev1.PersistentVolume
		want  []kind.SecretRef
	}{
		{inline, nil, []kind.SecretRef{{Use: "chap", Name: "s"}}},
		{claim, bound, []kind.SecretRef{{Use: "chap", Namespace: "elsewhere", Name: "s"}}},
		{claim, nil, nil},
		{secret("s"), nil, nil}, // what it is made of is no Secret of its kind
		{corev1.Volume{VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{}}}, nil, nil},
	} {
		if got := m.Secrets(&c.v, c.bound); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.v.VolumeSource, got, c.want)
		}
		// A pod hears of the changes of the objects that it refers to.
		refs := desired.Refs(podWith(c.v))
		for _, s := range c.want {
			if c.bound == nil && !slices.Contains(refs, object.RefTo(object.Secret, "default", s.Name)) {
				t.Errorf("%+v: the pod refers to %v alone", c.v.VolumeSource, refs)
			}
		}
	}
}

// driver is a kind like a driver's: it needs Secrets, mounts, shares what it stages, and takes it away by its records.
type driver struct {
	t       *testing.T
	records kind.Records[string]
	staged  map[string]bool
	refuse  error
}

func (*driver) Traits() kind.Traits { return kind.Traits{Plugin: "driver"} }

func (*driver) Makes(s kind.Source) bool { return s.Pod.CSI != nil || s.Bound != nil }

func (*driver) Secrets(kind.Source) []kind.SecretRef {
	return []kind.SecretRef{{Use: "stage", Name: "a"}, {Use: "publish", Name: "b"}}
}

func (d *driver) Setup(_ context.Context, v *kind.Volume) (kind.Made, error) {
	if string(v.Secrets["stage"]["key"]) != "1" || string(v.Secrets["publish"]["key"]) != "2" {
		return kind.Made{}, errors.New("the Secrets are not there")
	}
	disk := v.Source.Pod.CSI.Driver
	if err := d.records.Keep(v.Dir, v.Name, disk); err != nil {
		return kind.Made{}, err
	}
	d.staged[disk] = true
	made := kind.Made{Path: v.Path("driver"), Group: disk == "grouped"}
	if mounted, err := mount.Is(made.Path); err != nil || mounted {
		return made, err
	}
	return made, errors.Join(os.MkdirAll(made.Path, 0o750), mount.Memory("tmpfs", made.Path, "size=64k"))
}

func (d *driver) Release(_ context.Context, dir string) error {
	if left, err := mount.Under(dir); err != nil || len(left) > 0 {
		d.t.Errorf("it is to undo what is still mounted: %q, %v", left, err)
	}
	if d.refuse != nil {
		return d.refuse
	}
	has, err := d.records.Of(dir)
	for volume, disk := range has {
		shared, sharedErr := d.records.Others(dir, volume, func(other string) bool { return other == disk })
		if !shared {
			delete(d.staged, disk)
		}
		err = errors.Join(err, sharedErr, d.records.Forget(dir, volume))
	}
	return err
}

// The lifecycle of a kind that shares what it makes between pods, with an agent that is killed between.
func TestLifeOfKind(t *testing.T) {
	needRoot(t)
	m := manager(t)
	d := &driver{t: t, records: kind.Records[string]{Root: m.root, File: "driver.json", What: "disks"}, staged: map[string]bool{}}
	next := func() {
		m = New(Config{Root: string(m.root)})
		m.kinds = []Kind{d}
	}
	next()
	volume := func(name, disk string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: disk}}}
	}
	first, second := podWith(volume("a", "grouped"), volume("b", "own")), podWith(volume("a", "grouped"))
	second.UID = "second"
	first.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(77))}
	given := kind.Secrets{"stage": {"key": []byte("1")}, "publish": {"key": []byte("2")}}
	content := Content{Secrets: map[string]kind.Secrets{"a": given, "b": given}}
	if _, err := m.Setup(t.Context(), first, Content{}); err == nil || !strings.Contains(err.Error(), "Secrets are not there") {
		t.Errorf("without its Secrets: %v", err)
	}
	paths, err := m.Setup(t.Context(), first, content)
	must(t, err)
	for name, want := range map[string]uint32{"a": 77, "b": 0} {
		var st unix.Stat_t
		must(t, unix.Stat(paths[name], &st))
		if st.Gid != want {
			t.Errorf("%s has the group %d", name, st.Gid)
		}
	}
	// An agent that was killed before all of the volume was the group's gives it away when it is set up again.
	mounttest.Write(t, filepath.Join(paths["a"], "file"), "x")
	must(t, os.Chown(paths["a"], 0, 0))
	next()
	_, err = m.Setup(t.Context(), first, content)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(paths["a"], "file"), &st))
	if st.Gid != 77 {
		t.Errorf("what an agent that was killed has left has the group %d", st.Gid)
	}
	_, err = m.Setup(t.Context(), second, content)
	must(t, err)
	d.refuse = errors.New("the driver is not there")
	if err := m.Teardown(t.Context(), testUID); !errors.Is(err, d.refuse) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(string(m.root), "pods", testUID, "driver.json")); err != nil {
		t.Errorf("the record has gone before what it tells of: %v", err)
	}
	d.refuse = nil
	next()
	teardown(t, m)
	if !d.staged["grouped"] || d.staged["own"] {
		t.Errorf("staged: %v", d.staged)
	}
	must(t, m.Teardown(t.Context(), "second"))
	if len(d.staged) > 0 {
		t.Errorf("staged: %v", d.staged)
	}
	// It says that it cannot be a block device.
	pod, claimedContent := claimed(persistent(corev1.PersistentVolumeSource{}, corev1.PersistentVolumeBlock))
	pod.Spec.Containers[0].VolumeMounts = nil
	if _, err := m.Setup(t.Context(), pod, claimedContent); err == nil || !strings.Contains(err.Error(), `persistentvolume "pv": this kind of volume cannot have the volumeMode Block`) {
		t.Errorf("as a block device: %v", err)
	}
	teardown(t, m)
}

// To give a large volume to a group takes time, which ends.
func TestGroupGivesUp(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	mounttest.Write(t, filepath.Join(dir, "a/file"), "x")
	pod := podWith()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(77))}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := takeGroup(ctx, new(patience.Calls), pod, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	var st unix.Stat_t
	must(t, unix.Stat(dir, &st))
	if st.Gid == 77 {
		t.Error("the volume is said to be the group's")
	}
}

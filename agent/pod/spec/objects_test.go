package spec

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/object"
)

func objects() *object.Store {
	var s object.Store
	s.Put(object.RefTo(object.ConfigMap, "ns", "cm"), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "ns"}, Data: map[string]string{"a": "1", "b.c": "2"}, BinaryData: map[string][]byte{"bin": {0, 1}},
	})
	s.Put(object.RefTo(object.Secret, "ns", "s"), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"}, Data: map[string][]byte{"password": []byte("p$(a)")},
	})
	return &s
}

func named(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

func TestEnvOfObjects(t *testing.T) {
	in := testInput(func(p *corev1.Pod) {
		p.Namespace = "ns"
		c := &p.Spec.Containers[0]
		c.EnvFrom = []corev1.EnvFromSource{
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("cm")}},
			{Prefix: "S_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("s")}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("none"), Optional: new(true)}},
		}
		c.Env = []corev1.EnvVar{
			{Name: "a", Value: "over$(a)"},
			{Name: "KEY", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named("cm"), Key: "b.c"}}},
			{Name: "NO", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("s"), Key: "none", Optional: new(true)}}},
		}
	})
	in.Objects = objects()
	got, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	for _, kv := range got.GetEnvs() {
		env = append(env, kv.GetKey()+"="+string(kv.GetValue()))
	}
	// What an object says is taken as it is, and is there to be referred to.
	if want := []string{"a=over1", "b.c=2", "S_password=p$(a)", "KEY=2"}; !slices.Equal(env, want) {
		t.Errorf("%q, want %q", env, want)
	}

	for want, change := range map[string]func(*corev1.Container){
		`couldn't find key x in ConfigMap ns/cm`: func(c *corev1.Container) {
			c.Env[1].ValueFrom.ConfigMapKeyRef.Key = "x"
		},
		`couldn't find key none in Secret ns/s`: func(c *corev1.Container) { c.Env[2].ValueFrom.SecretKeyRef.Optional = nil },
		`secret "none" not found`:               func(c *corev1.Container) { c.EnvFrom[2].SecretRef.Optional = new(false) },
		`configmap "none" not found`:            func(c *corev1.Container) { c.EnvFrom[0].ConfigMapRef.Name = "none" },
	} {
		bad := in
		bad.Container = in.Container.DeepCopy()
		change(bad.Container)
		if _, err := Container(bad); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestFiles(t *testing.T) {
	pod := testPod()
	pod.Namespace, pod.Labels = "ns", map[string]string{"b": "2", "a": `"`}
	for _, c := range []struct {
		name string
		v    corev1.VolumeSource
		want string // files as path:mode:data, or the error after "!"
	}{
		{"whole", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm"), DefaultMode: new(int32(0o600))}}, "a:600:1 b.c:600:2 bin:600:\x00\x01"},
		{"items", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm"), Items: []corev1.KeyToPath{
			{Key: "a", Path: "x/y", Mode: new(int32(0o400))}, {Key: "b.c", Path: "z"},
		}}}, "x/y:400:1 z:644:2"},
		{"no key", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm"), Items: []corev1.KeyToPath{{Key: "x", Path: "x"}}}}, "!references non-existent config key: x"},
		{"no map", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("x")}}, `!configmap "x" not found`},
		{"no secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x"}}, `!secret "x" not found`},
		{"optional", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x", Optional: new(true)}}, ""},
		{"optional key", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", Optional: new(true), Items: []corev1.KeyToPath{{Key: "x", Path: "x"}}}}, ""},
		{"projected", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(int32(0o440)), Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: named("cm"), Items: []corev1.KeyToPath{{Key: "a", Path: "p"}}}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: named("s"), Items: []corev1.KeyToPath{{Key: "password", Path: "p"}}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "l", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
		}}}, "l:440:a=\"\\\"\"\nb=\"2\" p:440:p$(a)"},
		{"downward", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "nobody", Resource: "limits.cpu"}},
		}}}, `!cpu: container "nobody" is not one of the pod`},
	} {
		files, ok, err := Files(pod, &corev1.Volume{VolumeSource: c.v}, objects(), Issued{}, testNode())
		var got []string
		for _, f := range files {
			got = append(got, f.Path+":"+formatMode(f.Mode)+":"+string(f.Data))
		}
		text := strings.Join(got, " ")
		if err != nil {
			text = "!" + err.Error()
		}
		if !ok || text != c.want {
			t.Errorf("%s: %q, want %q", c.name, text, c.want)
		}
	}
	if _, ok, _ := Files(pod, &corev1.Volume{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, objects(), Issued{}, testNode()); ok {
		t.Error("an emptyDir is made of objects")
	}
}

func formatMode(m uint32) string {
	return string([]byte{'0' + byte(m>>6&7), '0' + byte(m>>3&7), '0' + byte(m&7)})
}

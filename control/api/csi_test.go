package api

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// invalidOf are the errors of an object with the defaults.
func invalidOf(t *testing.T, o metav1.Object, text string, namespaced bool) []string {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	SetObjectDefaults(o)
	var out []string
	for _, e := range ValidateObject(o, namespaced) {
		out = append(out, e.Error())
	}
	return out
}

func same(t *testing.T, text string, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: got\n  %s", text, strings.Join(got, "\n  "))
		return
	}
	for _, w := range want {
		if !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, w) }) {
			t.Errorf("%s: no %q in\n  %s", text, w, strings.Join(got, "\n  "))
		}
	}
}

func TestCSIDriver(t *testing.T) {
	o := new(storagev1.CSIDriver)
	same(t, "defaults", invalidOf(t, o, `metadata: {name: Disk.example.com}`, false), nil)
	s := o.Spec
	if !*s.AttachRequired || *s.PodInfoOnMount || *s.RequiresRepublish || *s.SELinuxMount || *s.StorageCapacity ||
		*s.FSGroupPolicy != storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy ||
		!slices.Equal(s.VolumeLifecycleModes, []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}) {
		t.Errorf("defaults: %+v", s)
	}
	for text, want := range map[string][]string{
		`{metadata: {name: a}, spec: {fsGroupPolicy: File, volumeLifecycleModes: [Ephemeral, Persistent]}}`: nil,
		`{metadata: {name: a_b}}`:                             {`metadata.name: Invalid value: "a_b"`},
		`{metadata: {name: ` + strings.Repeat("a", 64) + `}}`: {`metadata.name: Invalid value`},
		`{metadata: {name: a}, spec: {fsGroupPolicy: Some, volumeLifecycleModes: [Ephemeral, Long], nodeAllocatableUpdatePeriodSeconds: 9}}`: {
			`spec.fsGroupPolicy: Unsupported value: "Some"`, `spec.volumeLifecycleModes[1]: Unsupported value: "Long"`,
			`spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9`,
		},
		`{metadata: {name: a}, spec: {tokenRequests: [{audience: x}, {audience: x, expirationSeconds: 5}]}}`: {
			`spec.tokenRequests[1].audience: Duplicate value: "x"`, `spec.tokenRequests[1].expirationSeconds: Invalid value: 5`,
		},
	} {
		same(t, text, invalidOf(t, new(storagev1.CSIDriver), text, false), want)
	}
}

func TestPersistentCSI(t *testing.T) {
	const volume = `{metadata: {name: v}, spec: {capacity: {storage: 1Gi}, accessModes: [$MODES], csi: {$CSI}}}`
	for _, c := range []struct {
		modes, csi string
		want       []string
	}{
		{"ReadWriteOncePod", `driver: A.b, volumeHandle: x, fsType: ext4, nodeStageSecretRef: {name: s, namespace: ns}`, nil},
		{"ReadWriteOncePod, ReadOnlyMany", `driver: a, volumeHandle: x`, []string{`spec.accessModes: Forbidden: ReadWriteOncePod`}},
		{"ReadWriteOnce", `readOnly: true`, []string{`spec.csi.driver: Required value`, `spec.csi.volumeHandle: Required value`}},
		{"ReadWriteOnce", `driver: a_b, volumeHandle: x, controllerPublishSecretRef: {}, nodePublishSecretRef: {name: s}, ` +
			`nodeStageSecretRef: {namespace: s}, nodeExpandSecretRef: {}`, []string{
			`spec.csi.driver: Invalid value: "a_b"`, `spec.csi.controllerPublishSecretRef.name: Required value`,
			`spec.csi.controllerPublishSecretRef.namespace: Required value`, `spec.csi.nodePublishSecretRef.namespace: Required value`,
			`spec.csi.nodeStageSecretRef.name: Required value`, `spec.csi.nodeExpandSecretRef.name: Required value`,
			`spec.csi.nodeExpandSecretRef.namespace: Required value`,
		}},
	} {
		text := strings.NewReplacer("$MODES", c.modes, "$CSI", c.csi).Replace(volume)
		same(t, text, invalidOf(t, new(corev1.PersistentVolume), text, false), c.want)
	}
}

package api

import (
	"strings"
	"testing"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStorageClass(t *testing.T) {
	o := new(storagev1.StorageClass)
	same(t, "defaults", invalidOf(t, o, `{metadata: {name: a}, provisioner: d}`, false), nil)
	if *o.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete || *o.VolumeBindingMode != storagev1.VolumeBindingImmediate {
		t.Errorf("defaults: %+v", o)
	}
	many := make([]string, maxParameters+1)
	for i := range many {
		many[i] = strings.Repeat("k", i+1) + `: ""`
	}
	for text, want := range map[string][]string{
		`{metadata: {name: a}, provisioner: d, reclaimPolicy: Retain, volumeBindingMode: WaitForFirstConsumer, parameters: {a: b}}`: nil,
		`{metadata: {name: a}}`: {`provisioner: Required value`},
		`{metadata: {name: a}, provisioner: d, reclaimPolicy: Recycle, volumeBindingMode: Later}`: {
			`reclaimPolicy: Unsupported value: "Recycle"`, `volumeBindingMode: Unsupported value: "Later"`,
		},
		`{metadata: {name: a}, provisioner: d, parameters: {"": x}}`:                                                         {`parameters: Invalid value: ""`},
		`{metadata: {name: a}, provisioner: d, parameters: {` + strings.Join(many, ", ") + `}}`:                              {`parameters: Too many`},
		`{metadata: {name: a}, provisioner: d, parameters: {a: ` + strings.Repeat("x", maxParameterSize) + `}}`:              {`parameters: Too long`},
		`{metadata: {name: a}, provisioner: d, allowedTopologies: [{matchLabelExpressions: [{key: zone, values: [a, b]}]}]}`: nil,
		`{metadata: {name: a}, provisioner: d, allowedTopologies: [{}, {matchLabelExpressions: [{key: z, values: [a]}, {key: z, values: []}, {key: "a b", values: [c]}]}]}`: {
			`allowedTopologies[0].matchLabelExpressions: Required value`, `allowedTopologies[1].matchLabelExpressions[1].key: Duplicate value`,
			`allowedTopologies[1].matchLabelExpressions[1].values: Required value`, `allowedTopologies[1].matchLabelExpressions[2].key: Invalid value`,
		},
	} {
		same(t, text[:min(len(text), 200)], invalidOf(t, new(storagev1.StorageClass), text, false), want)
	}
}

func TestSnapshots(t *testing.T) {
	for _, one := range []struct {
		object     metav1.Object
		namespaced bool
		text       string
		want       []string
	}{
		{new(snapshotv1.VolumeSnapshotClass), false, `{metadata: {name: a}, driver: d, deletionPolicy: Delete, parameters: {a: b}}`, nil},
		{new(snapshotv1.VolumeSnapshotClass), false, `{metadata: {name: a}, driver: "d/", deletionPolicy: Never, parameters: {"": b}}`, []string{
			`driver: Invalid value: "d/"`, `deletionPolicy: Unsupported value: "Never"`, `parameters: Invalid value`,
		}},
		{new(snapshotv1.VolumeSnapshot), true, `{metadata: {name: a, namespace: b}, spec: {source: {persistentVolumeClaimName: c}, volumeSnapshotClassName: d}}`, nil},
		{new(snapshotv1.VolumeSnapshot), true, `{metadata: {name: a, namespace: b}, spec: {source: {volumeSnapshotContentName: c}}}`, nil},
		{new(snapshotv1.VolumeSnapshot), true, `{metadata: {name: a, namespace: b}, spec: {source: {}}}`, []string{`spec.source: Invalid value`}},
		{
			new(snapshotv1.VolumeSnapshot), true,
			`{metadata: {name: a, namespace: b}, spec: {source: {persistentVolumeClaimName: c, volumeSnapshotContentName: c}}}`,
			[]string{`spec.source: Invalid value`},
		},
		{
			new(snapshotv1.VolumeSnapshot), true,
			`{metadata: {name: a, namespace: b}, spec: {source: {persistentVolumeClaimName: ../c}, volumeSnapshotClassName: D_}}`,
			[]string{`spec.source.persistentVolumeClaimName: Invalid value`, `spec.volumeSnapshotClassName: Invalid value`},
		},
		{
			new(snapshotv1.VolumeSnapshot), true, `{metadata: {name: a, namespace: b}, spec: {source: {volumeSnapshotContentName: C_}}}`,
			[]string{`spec.source.volumeSnapshotContentName: Invalid value`},
		},
		{new(snapshotv1.VolumeSnapshotContent), false, `{metadata: {name: a}, spec: {driver: d, deletionPolicy: Retain, source: {snapshotHandle: h}}}`, nil},
		{new(snapshotv1.VolumeSnapshotContent), false, `{metadata: {name: a}, spec: {driver: d, deletionPolicy: Delete, source: {volumeHandle: h}}}`, []string{
			`spec.source.volumeHandle: Forbidden`, `spec.source.snapshotHandle: Required value`,
		}},
		{new(groupsnapshotv1.VolumeGroupSnapshotClass), false, `{metadata: {name: a}, driver: d, deletionPolicy: Delete, parameters: {a: b}}`, nil},
		{new(groupsnapshotv1.VolumeGroupSnapshotClass), false, `{metadata: {name: a}, driver: "d/", deletionPolicy: Never, parameters: {"": b}}`, []string{
			`driver: Invalid value: "d/"`, `deletionPolicy: Unsupported value: "Never"`, `parameters: Invalid value`,
		}},
		{
			new(groupsnapshotv1.VolumeGroupSnapshot), true,
			`{metadata: {name: a, namespace: b}, spec: {source: {selector: {matchLabels: {app: db}}}, volumeGroupSnapshotClassName: d}}`, nil,
		},
		{
			new(groupsnapshotv1.VolumeGroupSnapshot), true, `{metadata: {name: a, namespace: b}, spec: {source: {selector: {}}}}`,
			[]string{`spec.source.selector: Required value`},
		},
		{
			new(groupsnapshotv1.VolumeGroupSnapshot), true,
			`{metadata: {name: a, namespace: b}, spec: {source: {selector: {matchExpressions: [{key: a, operator: Near}]}}, volumeGroupSnapshotClassName: D_}}`,
			[]string{`spec.source.selector.matchExpressions[0].operator: Invalid value`, `spec.volumeGroupSnapshotClassName: Invalid value`},
		},
		{
			new(groupsnapshotv1.VolumeGroupSnapshot), true, `{metadata: {name: a, namespace: b}, spec: {source: {volumeGroupSnapshotContentName: c}}}`,
			[]string{`spec.source.volumeGroupSnapshotContentName: Forbidden`},
		},
		{new(storagev1.VolumeAttributesClass), false, `{metadata: {name: a}, driverName: d, parameters: {iops: "9"}}`, nil},
		{new(storagev1.VolumeAttributesClass), false, `{metadata: {name: a}, driverName: "d/"}`, []string{`driverName: Invalid value: "d/"`, `parameters: Required value`}},
		{new(storagev1.VolumeAttributesClass), false, `{metadata: {name: a}, driverName: d, parameters: {"": x}}`, []string{`parameters: Invalid value`}},
	} {
		same(t, one.text, invalidOf(t, one.object, one.text, one.namespaced), one.want)
	}
}

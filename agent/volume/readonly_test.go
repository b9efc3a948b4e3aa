package volume

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestReadOnly: whether containers may write to a volume, and whether others have a part in making it, is asked of its
// kind alone.
func TestReadOnly(t *testing.T) {
	m := New(Config{Root: t.TempDir()})
	const fs = corev1.PersistentVolumeFilesystem
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	only := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: true}}
	var readOnly, elsewhere []string
	for name, c := range map[string]struct {
		v     corev1.VolumeSource
		bound *corev1.PersistentVolume
	}{
		"config map":     {v: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
		"secret":         {v: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
		"downward":       {v: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}},
		"projected":      {v: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
		"image":          {v: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}},
		"nfs only":       {v: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{ReadOnly: true}}},
		"iscsi only":     {v: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{ReadOnly: true}}},
		"csi only":       {v: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{ReadOnly: new(true)}}},
		"claim only":     {only, persistent(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}, fs)},
		"pv only":        {claim, persistent(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{ReadOnly: true}}, fs)},
		"pv csi only":    {claim, persistent(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{ReadOnly: true}}, fs)},
		"pv iscsi only":  {claim, persistent(corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{ReadOnly: true}}, fs)},
		"pv":             {claim, persistent(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{}}, fs)},
		"pv local":       {claim, persistent(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{}}, fs)},
		"unbound":        {v: claim},
		"ephemeral":      {v: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		"nfs":            {v: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}},
		"iscsi":          {v: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{}}},
		"csi":            {v: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}},
		"empty":          {v: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		"host":           {v: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}},
		"of nobody here": {},
	} {
		v := corev1.Volume{Name: "v", VolumeSource: c.v}
		if m.ReadOnly(&v, c.bound) {
			readOnly = append(readOnly, name)
		}
		if m.Elsewhere(podWith(v)) {
			elsewhere = append(elsewhere, name)
		}
	}
	slices.Sort(readOnly)
	slices.Sort(elsewhere)
	if want := []string{
		"claim only", "config map", "csi only", "downward", "image", "iscsi only", "nfs only", "projected", "pv csi only", "pv iscsi only",
		"pv only", "secret",
	}; !slices.Equal(readOnly, want) {
		t.Errorf("read-only are %q, want %q", readOnly, want)
	}
	if want := []string{
		"claim only", "csi", "csi only", "ephemeral", "iscsi", "iscsi only", "nfs", "nfs only", "pv", "pv csi only", "pv iscsi only",
		"pv local", "pv only", "unbound",
	}; !slices.Equal(elsewhere, want) {
		t.Errorf("elsewhere are %q, want %q", elsewhere, want)
	}
}

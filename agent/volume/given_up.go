package volume

import corev1 "k8s.io/api/core/v1"

// noKind is why there is no kind for a volume. The field tells of those of pods that the volume is another's; of a
// PersistentVolume, nobody has.
func noKind(bound *corev1.PersistentVolume) string {
	if bound == nil {
		return "this kind of volume is not there yet"
	}
	if driver := driverOf(&bound.Spec.PersistentVolumeSource); driver != "" {
		return "volumes of this kind are made by the CSI driver " + driver + " alone, and PersistentVolume " + bound.Name +
			" has none: make it again with spec.csi.driver"
	}
	return "this kind of volume is not there yet"
}

// driverOf is the CSI driver to which Kubernetes has given over a kind of volume.
func driverOf(s *corev1.PersistentVolumeSource) string {
	switch {
	case s.AWSElasticBlockStore != nil:
		return "ebs.csi.aws.com"
	case s.AzureDisk != nil:
		return "disk.csi.azure.com"
	case s.AzureFile != nil:
		return "file.csi.azure.com"
	case s.CephFS != nil:
		return "cephfs.csi.ceph.com"
	case s.Cinder != nil:
		return "cinder.csi.openstack.org"
	case s.GCEPersistentDisk != nil:
		return "pd.csi.storage.gke.io"
	case s.PortworxVolume != nil:
		return "pxd.portworx.com"
	case s.RBD != nil:
		return "rbd.csi.ceph.com"
	case s.VsphereVolume != nil:
		return "csi.vsphere.vmware.com"
	}
	return ""
}

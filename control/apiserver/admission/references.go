package admission

import (
	corev1 "k8s.io/api/core/v1"
)

// refersTo names the kind of objects, of all that a pod could be given, that a pod refers to, or nothing.
func refersTo(pod *corev1.Pod) string {
	s := &pod.Spec
	switch {
	case s.ServiceAccountName != "":
		return "serviceaccounts"
	case len(s.ImagePullSecrets) > 0:
		return "secrets"
	case len(s.ResourceClaims) > 0:
		return "resourceclaims"
	}
	for _, c := range s.InitContainers {
		if what := envRefersTo(c.Env, c.EnvFrom); what != "" {
			return what
		}
	}
	for _, c := range s.Containers {
		if what := envRefersTo(c.Env, c.EnvFrom); what != "" {
			return what
		}
	}
	for _, c := range s.EphemeralContainers {
		if what := envRefersTo(c.Env, c.EnvFrom); what != "" {
			return what
		}
	}
	for i := range s.Volumes {
		if what := volumeRefersTo(&s.Volumes[i].VolumeSource); what != "" {
			return what
		}
	}
	return ""
}

func envRefersTo(env []corev1.EnvVar, from []corev1.EnvFromSource) string {
	for _, e := range env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			return "secrets"
		}
		if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
			return "configmaps"
		}
	}
	for _, f := range from {
		if f.SecretRef != nil {
			return "secrets"
		}
		if f.ConfigMapRef != nil {
			return "configmaps"
		}
	}
	return ""
}

// volumeRefersTo takes every source that it does not know to be of the node alone for one that refers to something.
func volumeRefersTo(v *corev1.VolumeSource) string {
	switch {
	case v.HostPath != nil, v.EmptyDir != nil, v.DownwardAPI != nil, v.NFS != nil, v.GitRepo != nil, v.Image != nil,
		v.GCEPersistentDisk != nil, v.AWSElasticBlockStore != nil, v.FC != nil, v.AzureDisk != nil, v.PhotonPersistentDisk != nil,
		v.PortworxVolume != nil, v.VsphereVolume != nil, v.Quobyte != nil, v.Flocker != nil:
		return ""
	case v.Secret != nil, v.AzureFile != nil,
		v.ISCSI != nil && v.ISCSI.SecretRef != nil, v.FlexVolume != nil && v.FlexVolume.SecretRef != nil,
		v.CephFS != nil && v.CephFS.SecretRef != nil, v.RBD != nil && v.RBD.SecretRef != nil, v.ScaleIO != nil && v.ScaleIO.SecretRef != nil,
		v.StorageOS != nil && v.StorageOS.SecretRef != nil, v.Cinder != nil && v.Cinder.SecretRef != nil:
		return "secrets"
	case v.ConfigMap != nil:
		return "configmaps"
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return "persistentvolumeclaims"
	case v.CSI != nil:
		return "csidrivers"
	case v.Glusterfs != nil:
		return "endpoints"
	case v.ISCSI != nil, v.FlexVolume != nil, v.CephFS != nil, v.RBD != nil, v.ScaleIO != nil, v.StorageOS != nil, v.Cinder != nil:
		return ""
	case v.Projected != nil:
		for _, p := range v.Projected.Sources {
			switch {
			case p.DownwardAPI != nil:
			case p.Secret != nil:
				return "secrets"
			case p.ConfigMap != nil:
				return "configmaps"
			case p.ServiceAccountToken != nil:
				return "serviceaccounts"
			case p.ClusterTrustBundle != nil:
				return "clustertrustbundles"
			default:
				return "projected volumes"
			}
		}
		return ""
	}
	return "volumes of an unknown kind"
}

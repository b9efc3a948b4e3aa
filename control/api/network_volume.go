package api

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// need is a field that must not be empty.
type need struct{ name, value string }

func needs(path *field.Path, fields ...need) field.ErrorList {
	var errs field.ErrorList
	for _, f := range fields {
		errs = append(errs, check.Required(path.Child(f.name), f.value)...)
	}
	return errs
}

// validateNetworkSource validates volumes whose data is elsewhere. Most of their kinds have gone from the nodes, yet
// not from the API.
func validateNetworkSource(s *corev1.VolumeSource, p *field.Path) field.ErrorList {
	switch {
	case s.NFS != nil:
		at := p.Child("nfs")
		errs := needs(at, need{"server", s.NFS.Server}, need{"path", s.NFS.Path})
		if s.NFS.Path != "" && !path.IsAbs(s.NFS.Path) {
			errs = append(errs, field.Invalid(at.Child("path"), s.NFS.Path, "must be an absolute path"))
		}
		return errs
	case s.ISCSI != nil:
		return validateISCSI(s.ISCSI, p.Child("iscsi"))
	case s.FC != nil:
		return validateFC(s.FC, p.Child("fc"))
	case s.GitRepo != nil:
		errs := needs(p.Child("gitRepo"), need{"repository", s.GitRepo.Repository})
		if s.GitRepo.Directory != "" {
			errs = append(errs, localPath(p.Child("gitRepo", "directory"), s.GitRepo.Directory)...)
		}
		return errs
	case s.GCEPersistentDisk != nil:
		errs := needs(p.Child("gcePersistentDisk"), need{"pdName", s.GCEPersistentDisk.PDName})
		return append(errs, partition(p.Child("gcePersistentDisk", "partition"), s.GCEPersistentDisk.Partition)...)
	case s.AWSElasticBlockStore != nil:
		errs := needs(p.Child("awsElasticBlockStore"), need{"volumeID", s.AWSElasticBlockStore.VolumeID})
		return append(errs, partition(p.Child("awsElasticBlockStore", "partition"), s.AWSElasticBlockStore.Partition)...)
	case s.Glusterfs != nil:
		return needs(p.Child("glusterfs"), need{"endpoints", s.Glusterfs.EndpointsName}, need{"path", s.Glusterfs.Path})
	case s.RBD != nil:
		errs := monitors(p.Child("rbd", "monitors"), s.RBD.CephMonitors)
		return append(errs, needs(p.Child("rbd"), need{"image", s.RBD.RBDImage})...)
	case s.CephFS != nil:
		return monitors(p.Child("cephfs", "monitors"), s.CephFS.Monitors)
	case s.Cinder != nil:
		return needs(p.Child("cinder"), need{"volumeID", s.Cinder.VolumeID})
	case s.FlexVolume != nil:
		return needs(p.Child("flexVolume"), need{"driver", s.FlexVolume.Driver})
	case s.Flocker != nil:
		return validateFlocker(s.Flocker, p.Child("flocker"))
	case s.AzureFile != nil:
		return needs(p.Child("azureFile"), need{"secretName", s.AzureFile.SecretName}, need{"shareName", s.AzureFile.ShareName})
	case s.AzureDisk != nil:
		return needs(p.Child("azureDisk"), need{"diskName", s.AzureDisk.DiskName}, need{"diskURI", s.AzureDisk.DataDiskURI})
	case s.VsphereVolume != nil:
		return needs(p.Child("vsphereVolume"), need{"volumePath", s.VsphereVolume.VolumePath})
	case s.Quobyte != nil:
		return needs(p.Child("quobyte"), need{"registry", s.Quobyte.Registry}, need{"volume", s.Quobyte.Volume})
	case s.PhotonPersistentDisk != nil:
		return needs(p.Child("photonPersistentDisk"), need{"pdID", s.PhotonPersistentDisk.PdID})
	case s.PortworxVolume != nil:
		return needs(p.Child("portworxVolume"), need{"volumeID", s.PortworxVolume.VolumeID})
	case s.ScaleIO != nil:
		return needs(p.Child("scaleIO"), need{"gateway", s.ScaleIO.Gateway}, need{"system", s.ScaleIO.System}, need{"volumeName", s.ScaleIO.VolumeName})
	}
	return nil
}

func partition(p *field.Path, n int32) field.ErrorList {
	if n < 0 || n > 255 {
		return field.ErrorList{field.Invalid(p, n, validation.InclusiveRangeError(0, 255))}
	}
	return nil
}

func monitors(p *field.Path, hosts []string) field.ErrorList {
	if len(hosts) == 0 {
		return field.ErrorList{field.Required(p, "")}
	}
	return nil
}

func validateFlocker(f *corev1.FlockerVolumeSource, p *field.Path) field.ErrorList {
	switch {
	case f.DatasetName == "" && f.DatasetUUID == "":
		return field.ErrorList{field.Required(p, "one of datasetName and datasetUUID is required")}
	case f.DatasetName != "" && f.DatasetUUID != "":
		return field.ErrorList{field.Invalid(p, "resource", "datasetName and datasetUUID can not be specified simultaneously")}
	}
	return noBackstep(p.Child("datasetName"), f.DatasetName)
}

// validateISCSI checks the forms an initiator knows for names: iqn, eui and naa.
func validateISCSI(s *corev1.ISCSIVolumeSource, p *field.Path) field.ErrorList {
	errs := needs(p, need{"targetPortal", s.TargetPortal}, need{"iqn", s.IQN})
	if s.IQN != "" && !iscsiName(s.IQN) {
		errs = append(errs, field.Invalid(p.Child("iqn"), s.IQN, "must be a name that begins with iqn., eui. or naa."))
	}
	if s.InitiatorName != nil && !iscsiName(*s.InitiatorName) {
		errs = append(errs, field.Invalid(p.Child("initiatorName"), *s.InitiatorName, "must be a name that begins with iqn., eui. or naa."))
	}
	if s.Lun < 0 || s.Lun > 255 {
		errs = append(errs, field.Invalid(p.Child("lun"), s.Lun, validation.InclusiveRangeError(0, 255)))
	}
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		errs = append(errs, field.Required(p.Child("secretRef"), "must be given for CHAP authentication"))
	}
	return errs
}

// validatePersistentISCSI is validateISCSI for a PersistentVolume, whose Secret is in a namespace.
func validatePersistentISCSI(s *corev1.ISCSIPersistentVolumeSource, p *field.Path) field.ErrorList {
	inline := &corev1.ISCSIVolumeSource{
		TargetPortal: s.TargetPortal, IQN: s.IQN, Lun: s.Lun, InitiatorName: s.InitiatorName,
		DiscoveryCHAPAuth: s.DiscoveryCHAPAuth, SessionCHAPAuth: s.SessionCHAPAuth,
	}
	if s.SecretRef != nil {
		inline.SecretRef = &corev1.LocalObjectReference{Name: s.SecretRef.Name}
	}
	errs := validateISCSI(inline, p)
	if s.SecretRef != nil && s.SecretRef.Name == "" {
		errs = append(errs, field.Required(p.Child("secretRef", "name"), ""))
	}
	return errs
}

func iscsiName(name string) bool {
	for _, prefix := range []string{"iqn.", "eui.", "naa."} {
		if strings.HasPrefix(name, prefix) && len(name) > len(prefix) {
			return true
		}
	}
	return false
}

func validateFC(f *corev1.FCVolumeSource, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case len(f.TargetWWNs) == 0 && len(f.WWIDs) == 0:
		errs = append(errs, field.Required(p.Child("targetWWNs"), "must specify either targetWWNs or wwids, but not both"))
	case len(f.TargetWWNs) > 0 && len(f.WWIDs) > 0:
		errs = append(errs, field.Invalid(p.Child("targetWWNs"), f.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously"))
	case len(f.TargetWWNs) > 0 && f.Lun == nil:
		errs = append(errs, field.Required(p.Child("lun"), "lun is required if targetWWNs is specified"))
	case len(f.TargetWWNs) > 0 && (*f.Lun < 0 || *f.Lun > 255):
		errs = append(errs, field.Invalid(p.Child("lun"), *f.Lun, validation.InclusiveRangeError(0, 255)))
	}
	return errs
}

func validateProjected(s *corev1.ProjectedVolumeSource, p *field.Path) field.ErrorList {
	errs := fileMode(p.Child("defaultMode"), s.DefaultMode, true)
	errs = append(errs, fileUser(p.Child("defaultUser"), s.DefaultUser)...)
	paths := sets.New[string]()
	claim := func(at *field.Path, name string) {
		if name == "" {
			return
		}
		if paths.Has(name) {
			errs = append(errs, field.Invalid(at, name, "conflicting duplicate paths"))
		}
		paths.Insert(name)
	}
	for i := range s.Sources {
		errs = append(errs, validateProjection(&s.Sources[i], p.Child("sources").Index(i), claim)...)
	}
	return errs
}

func validateProjection(s *corev1.VolumeProjection, at *field.Path, claim func(*field.Path, string)) field.ErrorList {
	var errs field.ErrorList
	n := 0
	items := func(name, object string, items []corev1.KeyToPath) {
		n++
		errs = append(errs, check.Required(at.Child(name, "name"), object)...)
		errs = append(errs, keysToPaths(items, at.Child(name, "items"))...)
		for j, k := range items {
			claim(at.Child(name, "items").Index(j).Child("path"), k.Path)
		}
	}
	if s.Secret != nil {
		items("secret", s.Secret.Name, s.Secret.Items)
	}
	if s.ConfigMap != nil {
		items("configMap", s.ConfigMap.Name, s.ConfigMap.Items)
	}
	if s.DownwardAPI != nil {
		n++
		errs = append(errs, downwardFiles(s.DownwardAPI.Items, at.Child("downwardAPI", "items"))...)
		for j, f := range s.DownwardAPI.Items {
			claim(at.Child("downwardAPI", "items").Index(j).Child("path"), f.Path)
		}
	}
	if t := s.ServiceAccountToken; t != nil {
		n++
		p := at.Child("serviceAccountToken")
		switch e := t.ExpirationSeconds; {
		case e == nil:
			errs = append(errs, field.Required(p.Child("expirationSeconds"), ""))
		case *e < 600:
			errs = append(errs, field.Invalid(p.Child("expirationSeconds"), *e, "may not specify a duration less than 10 minutes"))
		case *e > 1<<32:
			errs = append(errs, field.Invalid(p.Child("expirationSeconds"), *e, "may not specify a duration larger than 2^32 seconds"))
		}
		errs = append(errs, localPath(p.Child("path"), t.Path)...)
		claim(p.Child("path"), t.Path)
	}
	if c := s.ClusterTrustBundle; c != nil {
		n++
		errs = append(errs, validateTrustBundle(c, at.Child("clusterTrustBundle"))...)
		claim(at.Child("clusterTrustBundle", "path"), c.Path)
	}
	if c := s.PodCertificate; c != nil {
		n++
		errs = append(errs, validateCertificate(c, at.Child("podCertificate"), claim)...)
	}
	switch {
	case n == 0:
		errs = append(errs, field.Required(at, "must specify a source"))
	case n > 1:
		errs = append(errs, field.Forbidden(at, "may not specify more than 1 volume type per source"))
	}
	return errs
}

func validateTrustBundle(c *corev1.ClusterTrustBundleProjection, p *field.Path) field.ErrorList {
	errs := localPath(p.Child("path"), c.Path)
	switch {
	case (c.Name == nil) == (c.SignerName == nil):
		errs = append(errs, field.Invalid(p, "", "exactly one of name and signerName must be set"))
	case c.Name != nil && c.LabelSelector != nil:
		errs = append(errs, field.Invalid(p.Child("labelSelector"), "", "may not be set together with name"))
	}
	return errs
}

func validateCertificate(c *corev1.PodCertificateProjection, p *field.Path, claim func(*field.Path, string)) field.ErrorList {
	const least, most = 3600, 7862400 // an hour, 91 days
	errs := needs(p, need{"signerName", c.SignerName}, need{"keyType", c.KeyType})
	if m := c.MaxExpirationSeconds; m != nil && (*m < least || *m > most) {
		errs = append(errs, field.Invalid(p.Child("maxExpirationSeconds"), *m, validation.InclusiveRangeError(least, most)))
	}
	if c.CredentialBundlePath == "" && c.KeyPath == "" && c.CertificateChainPath == "" {
		errs = append(errs, field.Required(p, "one of credentialBundlePath, keyPath and certificateChainPath is required"))
	}
	for _, f := range []need{{"credentialBundlePath", c.CredentialBundlePath}, {"keyPath", c.KeyPath}, {"certificateChainPath", c.CertificateChainPath}} {
		if f.value != "" {
			errs = append(errs, localPath(p.Child(f.name), f.value)...)
			claim(p.Child(f.name), f.value)
		}
	}
	return errs
}

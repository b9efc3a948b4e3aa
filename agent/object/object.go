// Package object has the objects that pods refer to: ConfigMaps, Secrets, PersistentVolumes and their claims,
// ResourceClaims and their templates, RuntimeClasses, PriorityClasses, CSIDrivers, StorageClasses,
// VolumeAttributesClasses and what there is of snapshots. Here they come out of the node's manifests, or from an API
// server, which has Services, VolumeAttachments and ClusterTrustBundles too: what the one has, pods of the other do not
// see.
//
// [Store] keeps the latest of each, in memory only. [Refs] says which of them a pod depends on, so that a change can be
// told to the pods that it concerns and to no others.
package object

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Object is one of the kinds below. It is shared and never changed once it is in the store.
type Object interface {
	metav1.Object
	runtime.Object
}

// Kind is that of an object.
type Kind string

// The kinds there are. Pod is here so that a [Ref] can name whatever a manifest may hold; the store has none.
const (
	Pod                   Kind = "Pod"
	ConfigMap             Kind = "ConfigMap"
	Secret                Kind = "Secret"
	PersistentVolume      Kind = "PersistentVolume"
	PersistentVolumeClaim Kind = "PersistentVolumeClaim"
	ResourceClaim         Kind = "ResourceClaim"
	ResourceClaimTemplate Kind = "ResourceClaimTemplate"
	RuntimeClass          Kind = "RuntimeClass"
	PriorityClass         Kind = "PriorityClass"
	CSIDriver             Kind = "CSIDriver"
	StorageClass          Kind = "StorageClass"
	VolumeSnapshot        Kind = "VolumeSnapshot"
	VolumeSnapshotClass   Kind = "VolumeSnapshotClass"
	VolumeSnapshotContent Kind = "VolumeSnapshotContent"

	VolumeGroupSnapshot        Kind = "VolumeGroupSnapshot"
	VolumeGroupSnapshotClass   Kind = "VolumeGroupSnapshotClass"
	VolumeGroupSnapshotContent Kind = "VolumeGroupSnapshotContent" // in events only
	VolumeAttributesClass      Kind = "VolumeAttributesClass"

	// Only an API server has these.
	VolumeAttachment   Kind = "VolumeAttachment"
	Service            Kind = "Service"
	ClusterTrustBundle Kind = "ClusterTrustBundle"
)

const (
	snapshotVersion      = "snapshot.storage.k8s.io/v1"
	groupSnapshotVersion = "groupsnapshot.storage.k8s.io/v1"
)

type kind struct {
	version string
	cluster bool // without a namespace
	empty   func() Object
}

var kinds = map[Kind]kind{
	ConfigMap:                  {"v1", false, func() Object { return new(corev1.ConfigMap) }},
	Secret:                     {"v1", false, func() Object { return new(corev1.Secret) }},
	PersistentVolume:           {"v1", true, func() Object { return new(corev1.PersistentVolume) }},
	PersistentVolumeClaim:      {"v1", false, func() Object { return new(corev1.PersistentVolumeClaim) }},
	ResourceClaim:              {"resource.k8s.io/v1", false, func() Object { return new(resourcev1.ResourceClaim) }},
	ResourceClaimTemplate:      {"resource.k8s.io/v1", false, func() Object { return new(resourcev1.ResourceClaimTemplate) }},
	RuntimeClass:               {"node.k8s.io/v1", true, func() Object { return new(nodev1.RuntimeClass) }},
	PriorityClass:              {"scheduling.k8s.io/v1", true, func() Object { return new(schedulingv1.PriorityClass) }},
	CSIDriver:                  {"storage.k8s.io/v1", true, func() Object { return new(storagev1.CSIDriver) }},
	StorageClass:               {"storage.k8s.io/v1", true, func() Object { return new(storagev1.StorageClass) }},
	VolumeSnapshot:             {snapshotVersion, false, func() Object { return new(snapshotv1.VolumeSnapshot) }},
	VolumeSnapshotClass:        {snapshotVersion, true, func() Object { return new(snapshotv1.VolumeSnapshotClass) }},
	VolumeGroupSnapshot:        {groupSnapshotVersion, false, func() Object { return new(groupsnapshotv1.VolumeGroupSnapshot) }},
	VolumeGroupSnapshotClass:   {groupSnapshotVersion, true, func() Object { return new(groupsnapshotv1.VolumeGroupSnapshotClass) }},
	VolumeGroupSnapshotContent: {groupSnapshotVersion, true, func() Object { return new(groupsnapshotv1.VolumeGroupSnapshotContent) }},
	VolumeSnapshotContent:      {snapshotVersion, true, func() Object { return new(snapshotv1.VolumeSnapshotContent) }},
	VolumeAttributesClass:      {"storage.k8s.io/v1", true, func() Object { return new(storagev1.VolumeAttributesClass) }},
	VolumeAttachment:           {"storage.k8s.io/v1", true, func() Object { return new(storagev1.VolumeAttachment) }},
	Service:                    {"v1", false, func() Object { return new(corev1.Service) }},
	ClusterTrustBundle:         {"certificates.k8s.io/v1", true, func() Object { return new(certificatesv1.ClusterTrustBundle) }},
}

// Empty is a new object of the kind; nil when there is no such kind. version is the one that its manifests have.
func (k Kind) Empty() (o Object, version string) {
	is, ok := kinds[k]
	if !ok {
		return nil, ""
	}
	return is.empty(), is.version
}

// InManifests says whether a manifest may hold objects of the kind.
func (k Kind) InManifests() bool {
	_, known := kinds[k]
	return known && !slices.Contains([]Kind{VolumeAttachment, Service, ClusterTrustBundle, VolumeGroupSnapshotContent}, k)
}

// AttachmentName is what the VolumeAttachment of a driver's volume to a node is called, by who makes it.
func AttachmentName(handle, driver, node string) string {
	sum := sha256.Sum256([]byte(handle + driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

// Namespaced says whether objects of the kind are in a namespace.
func (k Kind) Namespaced() bool { return !kinds[k].cluster }

// Ref names an object.
type Ref struct {
	Kind Kind
	types.NamespacedName
}

// String is how messages name it, such as configmap "default/a".
func (r Ref) String() string {
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + r.Name
	}
	return strings.ToLower(string(r.Kind)) + ` "` + name + `"`
}

// RefTo makes a Ref; the namespace of a kind that has none is left out.
func RefTo(k Kind, namespace, name string) Ref {
	if !k.Namespaced() {
		namespace = ""
	}
	return Ref{Kind: k, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

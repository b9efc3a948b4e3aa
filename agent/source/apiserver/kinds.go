package apiserver

import (
	"reflect"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source/apiserver/follow"
)

// kind says how the objects of a kind are had. The Node authorizer lets a node watch ConfigMaps and Secrets by their
// name, and what belongs to nobody as a whole; of the rest it lets it read each that a pod of the node refers to.
type kind struct {
	resource schema.GroupVersionResource
	list     func() follow.List // nil: they are read one by one
	all      bool               // followed as a whole
}

func kindOf(k object.Kind) kind {
	core, storage := corev1.SchemeGroupVersion, storagev1.SchemeGroupVersion
	switch k {
	case object.ConfigMap:
		return kind{core.WithResource("configmaps"), func() follow.List { return new(corev1.ConfigMapList) }, false}
	case object.Secret:
		return kind{core.WithResource("secrets"), func() follow.List { return new(corev1.SecretList) }, false}
	case object.Service:
		return kind{core.WithResource("services"), func() follow.List { return new(corev1.ServiceList) }, true}
	case object.RuntimeClass:
		return kind{nodev1.SchemeGroupVersion.WithResource("runtimeclasses"), func() follow.List { return new(nodev1.RuntimeClassList) }, true}
	case object.CSIDriver:
		return kind{storage.WithResource("csidrivers"), func() follow.List { return new(storagev1.CSIDriverList) }, true}
	case object.ClusterTrustBundle:
		list := func() follow.List { return new(certificatesv1.ClusterTrustBundleList) }
		return kind{certificatesv1.SchemeGroupVersion.WithResource("clustertrustbundles"), list, true}
	case object.PersistentVolume:
		return kind{resource: core.WithResource("persistentvolumes")}
	case object.PersistentVolumeClaim:
		return kind{resource: core.WithResource("persistentvolumeclaims")}
	case object.ResourceClaim:
		return kind{resource: resourcev1.SchemeGroupVersion.WithResource("resourceclaims")}
	case object.VolumeAttachment:
		return kind{resource: storage.WithResource("volumeattachments")}
	}
	return kind{}
}

func all(k object.Kind) bool { return kindOf(k).all }

// pending says whether a pod waits for an object to be another one: somebody else binds, attaches or allocates.
func pending(o object.Object) bool {
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		return o.Spec.VolumeName == "" || o.Status.Phase != corev1.ClaimBound
	case *corev1.PersistentVolume:
		return o.Spec.ClaimRef == nil || o.Spec.ClaimRef.UID == ""
	case *storagev1.VolumeAttachment:
		return !o.Status.Attached
	case *resourcev1.ResourceClaim:
		return o.Status.Allocation == nil || len(o.Status.ReservedFor) == 0
	}
	return false
}

// growing says whether somebody is about to make the volume of a claim larger, so that it soon is the node's turn.
func growing(o object.Object) bool {
	c, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok {
		return false
	}
	switch c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case "":
		return c.Spec.Resources.Requests.Storage().Cmp(*c.Status.Capacity.Storage()) > 0
	case corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimNodeResizePending,
		corev1.PersistentVolumeClaimNodeResizeInProgress:
		return true
	}
	return false
}

// immutable says whether an object stays what it is, so that it need not be watched.
func immutable(o object.Object) bool {
	var is *bool
	switch o := o.(type) {
	case *corev1.ConfigMap:
		is = o.Immutable
	case *corev1.Secret:
		is = o.Immutable
	}
	return is != nil && *is
}

// trim takes away what no pod has of an object, of which the cluster may have thousands.
func trim(o object.Object) {
	if svc, ok := o.(*corev1.Service); ok {
		svc.Annotations, svc.Labels, svc.Status = nil, nil, corev1.ServiceStatus{}
		svc.OwnerReferences, svc.Finalizers = nil, nil
		svc.Spec = corev1.ServiceSpec{
			Type: svc.Spec.Type, ClusterIP: svc.Spec.ClusterIP, ClusterIPs: svc.Spec.ClusterIPs, Ports: svc.Spec.Ports,
		}
	}
}

// typed has an object say of which kind it is, which an API server leaves out.
func typed(k object.Kind, o object.Object) {
	_, version := k.Empty()
	gvk := schema.FromAPIVersionAndKind(version, string(k))
	o.GetObjectKind().SetGroupVersionKind(gvk)
}

// isOf says whether an object is one of a kind, and not only called so: each that a server has, has a UID.
func isOf(k object.Kind, o object.Object) bool {
	is, _ := k.Empty()
	return reflect.TypeOf(o) == reflect.TypeOf(is) && o.GetUID() != ""
}

func versionOf(o metav1.Object) version { return version{o.GetUID(), o.GetResourceVersion()} }

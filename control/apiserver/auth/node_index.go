package auth

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-node/berth/control/controller"
)

// The indexes by which it is found whether a node needs an object. They are kept by the informers, so that there is no
// second copy of the truth that could be behind.
const (
	neededByNode  = "berth.needed-by-node" // of pods: NODE/KIND/NAMESPACE/NAME
	secretsOfBind = "berth.secrets"        // of volumes: NAMESPACE/NAME of the secrets that a node needs for it
)

// nodeIndex knows what the nodes need.
type nodeIndex struct {
	pods        cache.Indexer
	volumes     cache.Indexer
	pvs         corelisters.PersistentVolumeLister
	attachments storagelisters.VolumeAttachmentLister
	slices      resourcelisters.ResourceSliceLister
	client      kubernetes.Interface
}

func newNodeIndex(i informers.SharedInformerFactory, client kubernetes.Interface) (*nodeIndex, error) {
	pods, volumes := i.Core().V1().Pods().Informer(), i.Core().V1().PersistentVolumes().Informer()
	// A second server on the same informers, as in a test, finds the index there.
	if err := errors.Join(controller.Index(pods, neededByNode, needsOfPod), controller.Index(volumes, secretsOfBind, secretsOfVolume)); err != nil {
		return nil, err
	}
	return &nodeIndex{
		pods: pods.GetIndexer(), volumes: volumes.GetIndexer(), pvs: i.Core().V1().PersistentVolumes().Lister(),
		attachments: i.Storage().V1().VolumeAttachments().Lister(), slices: i.Resource().V1().ResourceSlices().Lister(),
		client: client,
	}, nil
}

// needs tells whether a node needs an object.
func (n *nodeIndex) needs(ctx context.Context, node, kind, namespace, name string) bool {
	switch kind {
	case "persistentvolumes":
		pv, err := n.pvs.Get(name)
		return err == nil && n.needsVolume(node, pv)
	case "volumeattachments":
		a, err := n.attachments.Get(name)
		return err == nil && a.Spec.NodeName == node
	case "resourceslices":
		s, err := n.slices.Get(name)
		return err == nil && s.Spec.NodeName != nil && *s.Spec.NodeName == node
	case "podcertificaterequests":
		// Nodes watch theirs and get one now and then only: no reason to keep all of them in memory.
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		r, err := n.client.CertificatesV1().PodCertificateRequests(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && string(r.Spec.NodeName) == node
	}
	if n.podNeeds(node, kind, namespace, name) {
		return true
	}
	if kind != "secrets" {
		return false
	}
	volumes, err := n.volumes.ByIndex(secretsOfBind, namespace+"/"+name)
	if err != nil {
		return false
	}
	for _, o := range volumes {
		if pv, ok := o.(*corev1.PersistentVolume); ok && n.needsVolume(node, pv) {
			return true
		}
	}
	return false
}

func (n *nodeIndex) podNeeds(node, kind, namespace, name string) bool {
	keys, err := n.pods.IndexKeys(neededByNode, needKey(node, kind, namespace, name))
	return err == nil && len(keys) > 0
}

func (n *nodeIndex) needsVolume(node string, pv *corev1.PersistentVolume) bool {
	claim := pv.Spec.ClaimRef
	return claim != nil && n.podNeeds(node, "persistentvolumeclaims", claim.Namespace, claim.Name)
}

func needKey(node, kind, namespace, name string) string {
	return node + "/" + kind + "/" + namespace + "/" + name
}

// needsOfPod are the objects that the node of a pod needs for it.
func needsOfPod(o any) ([]string, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil, nil
	}
	var all []string
	add := func(kind, name string) {
		if name != "" {
			all = append(all, needKey(pod.Spec.NodeName, kind, pod.Namespace, name))
		}
	}
	add("pods", pod.Name)
	// A mirror pod is what the node itself says: it must not open anything.
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return all, nil
	}
	add("serviceaccounts", pod.Spec.ServiceAccountName)
	for _, s := range pod.Spec.ImagePullSecrets {
		add("secrets", s.Name)
	}
	for _, c := range pod.Spec.InitContainers {
		needsOfContainer(c.Env, c.EnvFrom, add)
	}
	for _, c := range pod.Spec.Containers {
		needsOfContainer(c.Env, c.EnvFrom, add)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		needsOfContainer(c.Env, c.EnvFrom, add)
	}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Ephemeral != nil {
			add("persistentvolumeclaims", ephemeral.VolumeClaimName(pod, &pod.Spec.Volumes[i]))
		}
		needsOfSource(&pod.Spec.Volumes[i].VolumeSource, add)
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			add("resourceclaims", *s.ResourceClaimName)
		}
	}
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			add("resourceclaims", *c.ResourceClaimName)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		add("resourceclaims", s.ResourceClaimName)
	}
	return all, nil
}

func needsOfContainer(env []corev1.EnvVar, from []corev1.EnvFromSource, add func(kind, name string)) {
	for _, e := range env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			add("secrets", r.Name)
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			add("configmaps", r.Name)
		}
	}
	for _, f := range from {
		if f.SecretRef != nil {
			add("secrets", f.SecretRef.Name)
		}
		if f.ConfigMapRef != nil {
			add("configmaps", f.ConfigMapRef.Name)
		}
	}
}

func needsOfSource(v *corev1.VolumeSource, add func(kind, name string)) {
	secret := func(r *corev1.LocalObjectReference) {
		if r != nil {
			add("secrets", r.Name)
		}
	}
	switch {
	case v.Secret != nil:
		add("secrets", v.Secret.SecretName)
	case v.ConfigMap != nil:
		add("configmaps", v.ConfigMap.Name)
	case v.PersistentVolumeClaim != nil:
		add("persistentvolumeclaims", v.PersistentVolumeClaim.ClaimName)
	case v.Projected != nil:
		for _, p := range v.Projected.Sources {
			if p.Secret != nil {
				add("secrets", p.Secret.Name)
			}
			if p.ConfigMap != nil {
				add("configmaps", p.ConfigMap.Name)
			}
		}
	case v.CSI != nil:
		secret(v.CSI.NodePublishSecretRef)
	case v.ISCSI != nil:
		secret(v.ISCSI.SecretRef)
	case v.FlexVolume != nil:
		secret(v.FlexVolume.SecretRef)
	case v.CephFS != nil:
		secret(v.CephFS.SecretRef)
	case v.RBD != nil:
		secret(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		secret(v.ScaleIO.SecretRef)
	case v.StorageOS != nil:
		secret(v.StorageOS.SecretRef)
	case v.AzureFile != nil:
		add("secrets", v.AzureFile.SecretName)
	}
}

// secretsOfVolume are those that a node needs for a volume: not those of the driver's controller.
func secretsOfVolume(o any) ([]string, error) {
	pv, ok := o.(*corev1.PersistentVolume)
	if !ok {
		return nil, nil
	}
	var all []string
	add := func(refs ...*corev1.SecretReference) {
		for _, r := range refs {
			if r == nil || r.Name == "" {
				continue
			}
			namespace := r.Namespace
			if namespace == "" && pv.Spec.ClaimRef != nil {
				namespace = pv.Spec.ClaimRef.Namespace
			}
			all = append(all, namespace+"/"+r.Name)
		}
	}
	s := pv.Spec.PersistentVolumeSource
	switch {
	case s.CSI != nil:
		add(s.CSI.NodeStageSecretRef, s.CSI.NodePublishSecretRef, s.CSI.NodeExpandSecretRef)
	case s.ISCSI != nil:
		add(s.ISCSI.SecretRef)
	case s.FlexVolume != nil:
		add(s.FlexVolume.SecretRef)
	case s.CephFS != nil:
		add(s.CephFS.SecretRef)
	case s.RBD != nil:
		add(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		add(s.ScaleIO.SecretRef)
	case s.StorageOS != nil && s.StorageOS.SecretRef != nil:
		add(&corev1.SecretReference{Namespace: s.StorageOS.SecretRef.Namespace, Name: s.StorageOS.SecretRef.Name})
	case s.AzureFile != nil:
		r := corev1.SecretReference{Name: s.AzureFile.SecretName}
		if s.AzureFile.SecretNamespace != nil {
			r.Namespace = *s.AzureFile.SecretNamespace
		}
		add(&r)
	}
	return all, nil
}

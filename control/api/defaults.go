// Package api is what an API server knows of a Pod before it stores it: the defaults it fills in and the rules it holds
// a new Pod to. It is pure: no I/O, no clock. Fields behind feature gates count as enabled, since whoever uses the
// package says for itself what it does not support.
package api

import (
	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// or fills an empty value.
func or[T comparable](at *T, value T) {
	var zero T
	if *at == zero {
		*at = value
	}
}

// orNew fills a missing value.
func orNew[T any](at **T, value T) {
	if *at == nil {
		*at = &value
	}
}

// SetDefaults fills in what the API server would. Doing it twice changes nothing.
func SetDefaults(pod *corev1.Pod) {
	s := &pod.Spec
	SetTemplateDefaults(s)
	orNew(&s.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	for i := range s.InitContainers {
		defaultRunning(&s.InitContainers[i], s.HostNetwork)
	}
	for i := range s.Containers {
		defaultRunning(&s.Containers[i], s.HostNetwork)
	}
	defaultPodResources(pod)
}

// SetTemplateDefaults fills in what the API server would in the template of a pod. What follows from other fields of
// the pod is left to the pod that is made of it.
func SetTemplateDefaults(s *corev1.PodSpec) {
	// One field under two names.
	or(&s.ServiceAccountName, s.DeprecatedServiceAccount)
	s.DeprecatedServiceAccount = s.ServiceAccountName
	or(&s.DNSPolicy, corev1.DNSClusterFirst)
	or(&s.RestartPolicy, corev1.RestartPolicyAlways)
	or(&s.SchedulerName, corev1.DefaultSchedulerName)
	orNew(&s.SecurityContext, corev1.PodSecurityContext{})
	orNew(&s.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i])
	}
	for i := range s.InitContainers {
		defaultContainerFields(&s.InitContainers[i])
	}
	for i := range s.Containers {
		defaultContainerFields(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		// An ephemeral container has the fields of a container, but neither resources nor host ports of its own.
		c := (*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon)
		defaultContainerFields(c)
	}
	milli(s.Overhead)
	if s.Resources != nil {
		milli(s.Resources.Limits)
		milli(s.Resources.Requests)
	}
}

// defaultRunning fills in what only a pod has, not its template.
func defaultRunning(c *corev1.Container, hostNetwork bool) {
	for name, limit := range c.Resources.Limits {
		if c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		if _, ok := c.Resources.Requests[name]; !ok {
			c.Resources.Requests[name] = limit.DeepCopy()
		}
	}
	if c.Resources.Limits != nil && c.Resources.Requests == nil {
		c.Resources.Requests = corev1.ResourceList{}
	}
	if hostNetwork {
		for i := range c.Ports {
			or(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
}

func defaultContainerFields(c *corev1.Container) {
	or(&c.ImagePullPolicy, pullPolicy(c.Image))
	or(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	or(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		or(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if f := c.Env[i].ValueFrom; f != nil {
			if f.FieldRef != nil {
				or(&f.FieldRef.APIVersion, "v1")
			}
			if f.FileKeyRef != nil {
				orNew(&f.FileKeyRef.Optional, false)
			}
		}
	}
	milli(c.Resources.Limits)
	milli(c.Resources.Requests)
	defaultProbe(c.LivenessProbe)
	defaultProbe(c.ReadinessProbe)
	defaultProbe(c.StartupProbe)
	if c.Lifecycle == nil {
		return
	}
	for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
		if h != nil {
			defaultHTTP(h.HTTPGet)
		}
	}
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	or(&p.TimeoutSeconds, 1)
	or(&p.PeriodSeconds, 10)
	or(&p.SuccessThreshold, 1)
	or(&p.FailureThreshold, 3)
	defaultHTTP(p.HTTPGet)
	if p.GRPC != nil {
		orNew(&p.GRPC.Service, "")
	}
}

func defaultHTTP(h *corev1.HTTPGetAction) {
	if h != nil {
		or(&h.Path, "/")
		or(&h.Scheme, corev1.URISchemeHTTP)
	}
}

// pullPolicy is Always for the tag latest, also where it is only implied, because that tag moves.
func pullPolicy(image string) corev1.PullPolicy {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return corev1.PullIfNotPresent
	}
	if t, ok := reference.TagNameOnly(named).(reference.Tagged); ok && t.Tag() == "latest" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// milli rounds quantities up to thousandths, the smallest step the API keeps.
func milli(list corev1.ResourceList) {
	for name, q := range list {
		q.RoundUp(-3)
		list[name] = q
	}
}

func defaultVolume(v *corev1.Volume) {
	s := &v.VolumeSource
	// A volume that says nothing of its source is an emptyDir.
	if *s == (corev1.VolumeSource{}) {
		s.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case s.HostPath != nil:
		orNew(&s.HostPath.Type, corev1.HostPathUnset)
	case s.Secret != nil:
		orNew(&s.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	case s.ConfigMap != nil:
		orNew(&s.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	case s.DownwardAPI != nil:
		orNew(&s.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultFieldRefs(s.DownwardAPI.Items)
	case s.Projected != nil:
		defaultProjected(s.Projected)
	case s.Image != nil:
		or(&s.Image.PullPolicy, pullPolicy(s.Image.Reference))
	case s.Ephemeral != nil:
		if t := s.Ephemeral.VolumeClaimTemplate; t != nil {
			orNew(&t.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
		}
	default:
		defaultNetworkVolume(s)
	}
}

func defaultNetworkVolume(s *corev1.VolumeSource) {
	switch {
	case s.ISCSI != nil:
		or(&s.ISCSI.ISCSIInterface, "default")
	case s.RBD != nil:
		or(&s.RBD.RBDPool, "rbd")
		or(&s.RBD.RadosUser, "admin")
		or(&s.RBD.Keyring, "/etc/ceph/keyring")
	case s.AzureDisk != nil:
		orNew(&s.AzureDisk.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		orNew(&s.AzureDisk.FSType, "ext4")
		orNew(&s.AzureDisk.ReadOnly, false)
		orNew(&s.AzureDisk.Kind, corev1.AzureSharedBlobDisk)
	case s.ScaleIO != nil:
		or(&s.ScaleIO.StorageMode, "ThinProvisioned")
		or(&s.ScaleIO.FSType, "xfs")
	}
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	orNew(&p.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range p.Sources {
		if d := p.Sources[i].DownwardAPI; d != nil {
			defaultFieldRefs(d.Items)
		}
		if t := p.Sources[i].ServiceAccountToken; t != nil {
			orNew(&t.ExpirationSeconds, 3600)
		}
		if c := p.Sources[i].PodCertificate; c != nil {
			orNew(&c.MaxExpirationSeconds, 24*3600)
		}
	}
}

func defaultFieldRefs(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		if f := items[i].FieldRef; f != nil {
			or(&f.APIVersion, "v1")
		}
	}
}

// defaultPodResources fills in the requests of the whole pod where it has limits: the sum of its containers' requests
// where those exist, else the limits.
func defaultPodResources(pod *corev1.Pod) {
	r := pod.Spec.Resources
	if r == nil {
		return
	}
	if len(r.Limits) == 0 && len(r.Requests) == 0 {
		return
	}
	// Huge pages cannot be had without a limit, so those of the containers are the pod's.
	for name, sum := range resource.AggregateContainerLimits(pod, resource.PodResourcesOptions{}) {
		_, limited := r.Limits[name]
		_, requested := r.Requests[name]
		if isHugePages(name) && !limited && !requested {
			if r.Limits == nil {
				r.Limits = corev1.ResourceList{}
			}
			r.Limits[name] = sum.DeepCopy()
		}
	}
	if len(r.Limits) == 0 {
		return
	}
	requests := r.Requests
	if requests == nil {
		requests = corev1.ResourceList{}
	}
	for name, sum := range resource.AggregateContainerRequests(pod, resource.PodResourcesOptions{}) {
		if _, ok := requests[name]; !ok && resource.IsSupportedPodLevelResource(name) && !isHugePages(name) {
			requests[name] = sum.DeepCopy()
		}
	}
	for name, limit := range r.Limits {
		if _, ok := requests[name]; !ok && resource.IsSupportedPodLevelResource(name) {
			requests[name] = limit.DeepCopy()
		}
	}
	if len(requests) > 0 {
		r.Requests = requests
	}
}

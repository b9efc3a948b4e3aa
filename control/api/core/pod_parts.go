package core

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

// ValidateEphemeralContainers holds a pod with containers to debug it by to its rules: they are added, never changed or
// taken away. Whatever else differs the server has put back.
func ValidateEphemeralContainers(o, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec", "ephemeralContainers")
	errs := append(check.MetaUpdate(o, old), api.Validate(o)...)
	if old.Annotations[corev1.MirrorPodAnnotationKey] != "" {
		errs = append(errs, field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers"))
	}
	for _, was := range old.Spec.EphemeralContainers {
		i := slices.IndexFunc(o.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == was.Name })
		switch {
		case i < 0:
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("existing ephemeral containers %q may not be removed", was.Name)))
		case !equality.Semantic.DeepEqual(o.Spec.EphemeralContainers[i], was):
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("existing ephemeral containers %q may not be changed", was.Name)))
		}
	}
	return errs
}

// resizable are the resources that a running container can get more or less of.
var resizable = sets.New(corev1.ResourceCPU, corev1.ResourceMemory)

// ValidateResize holds a pod whose containers are to get more or less of CPU and memory to its rules: its QoS class
// stays, and what was given is not taken back altogether.
func ValidateResize(o, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	errs := append(check.MetaUpdate(o, old), api.Validate(o)...)
	if old.Annotations[corev1.MirrorPodAnnotationKey] != "" {
		return append(errs, field.Forbidden(field.NewPath(""), "static pods cannot be resized"))
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		errs = append(errs, field.Forbidden(field.NewPath(""), "windows pods cannot be resized"))
	}
	if len(o.Spec.Containers) != len(old.Spec.Containers) || len(o.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return append(errs, field.Forbidden(path, "containers may not be added or removed"))
	}
	now := o.Spec.DeepCopy()
	for i := range now.Containers {
		at := path.Child("containers").Index(i).Child("resources")
		errs = append(errs, resized(&now.Containers[i], &old.Spec.Containers[i], at)...)
	}
	for i := range now.InitContainers {
		c := &now.InitContainers[i]
		// One that has ended has nothing to get more of.
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			errs = append(errs, resized(c, &old.Spec.InitContainers[i], path.Child("initContainers").Index(i).Child("resources"))...)
		}
	}
	if !equality.Semantic.DeepEqual(*now, old.Spec) {
		errs = append(errs, field.Forbidden(path, "only cpu and memory resources are mutable"))
	}
	if was, is := QOSClass(old), QOSClass(o); was != is {
		errs = append(errs, field.Invalid(path, is, "Pod QOS Class may not change as a result of resizing"))
	}
	return errs
}

// resized checks one container, and makes what it lets pass equal.
func resized(now, was *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	same := func(name string, list, before corev1.ResourceList) corev1.ResourceList {
		for r := range before {
			if _, ok := list[r]; !ok && resizable.Has(r) {
				errs = append(errs, field.Forbidden(path.Child(name), fmt.Sprintf("resource %s cannot be removed", r)))
			}
		}
		for r := range list {
			if resizable.Has(r) {
				delete(list, r)
			}
		}
		for r, q := range before {
			if resizable.Has(r) {
				if list == nil {
					list = corev1.ResourceList{}
				}
				list[r] = q
			}
		}
		return list
	}
	now.Resources.Limits = same("limits", now.Resources.Limits, was.Resources.Limits)
	now.Resources.Requests = same("requests", now.Resources.Requests, was.Resources.Requests)
	return errs
}

// QOSClass is the QoS class that a pod's resources come to.
func QOSClass(o *corev1.Pod) corev1.PodQOSClass {
	some, guaranteed := false, true
	for _, c := range slices.Concat(o.Spec.Containers, o.Spec.InitContainers) {
		for r := range resizable {
			request, limit := c.Resources.Requests[r], c.Resources.Limits[r]
			some = some || request.Sign() > 0 || limit.Sign() > 0
			guaranteed = guaranteed && limit.Sign() > 0 && request.Cmp(limit) == 0
		}
	}
	switch {
	case !some:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// ValidatePodStatus holds what a node says of a pod to its rules: where it runs stays, and what has ended does not
// begin again where it must not.
func ValidatePodStatus(o, old *corev1.Pod) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	path := field.NewPath("status")
	if o.Spec.NodeName != old.Spec.NodeName {
		errs = append(errs, field.Forbidden(path.Child("nodeName"), "may not be changed directly"))
	}
	if n := o.Status.NominatedNodeName; n != "" {
		errs = append(errs, check.Subdomain(path.Child("nominatedNodeName"), n)...)
	}
	if o.Status.QOSClass != old.Status.QOSClass {
		errs = append(errs, field.Invalid(path.Child("qosClass"), o.Status.QOSClass, "field is immutable"))
	}
	for _, part := range []struct {
		name     string
		now, was []corev1.ContainerStatus
		policy   func(string) corev1.RestartPolicy
	}{
		{"containerStatuses", o.Status.ContainerStatuses, old.Status.ContainerStatuses, func(name string) corev1.RestartPolicy { return restart(o, o.Spec.Containers, name) }},
		{"initContainerStatuses", o.Status.InitContainerStatuses, old.Status.InitContainerStatuses, func(name string) corev1.RestartPolicy {
			return restart(o, o.Spec.InitContainers, name)
		}},
	} {
		for i, was := range part.was {
			j := slices.IndexFunc(part.now, func(s corev1.ContainerStatus) bool { return s.Name == was.Name })
			if j < 0 || was.State.Terminated == nil || part.now[j].State.Terminated != nil {
				continue
			}
			p := part.policy(was.Name)
			if p == corev1.RestartPolicyNever || p == corev1.RestartPolicyOnFailure && was.State.Terminated.ExitCode == 0 {
				errs = append(errs, field.Forbidden(path.Child(part.name).Index(i).Child("state"), "may not be transitioned to non-terminated state"))
			}
		}
	}
	for i, c := range o.Status.ResourceClaimStatuses {
		if !slices.ContainsFunc(o.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool { return r.Name == c.Name }) {
			errs = append(errs, field.Invalid(path.Child("resourceClaimStatuses").Index(i).Child("name"), c.Name,
				"must match the name of an entry in `spec.resourceClaims`"))
		}
	}
	for i, a := range o.Status.HostIPs {
		at := path.Child("hostIPs").Index(i)
		errs = append(errs, check.IP(at, a.IP)...)
		if i == 0 && a.IP != o.Status.HostIP {
			errs = append(errs, field.Invalid(at.Child("ip"), a.IP, "must be equal to `hostIP`"))
		}
	}
	return append(errs, podIPs(o, path)...)
}

func restart(o *corev1.Pod, containers []corev1.Container, name string) corev1.RestartPolicy {
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name })
	if i >= 0 && containers[i].RestartPolicy != nil {
		return corev1.RestartPolicy(*containers[i].RestartPolicy)
	}
	return o.Spec.RestartPolicy
}

// podIPs are one or two, of each family at most one.
func podIPs(o *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	families := sets.New[corev1.IPFamily]()
	for i, a := range o.Status.PodIPs {
		errs = append(errs, check.IP(path.Child("podIPs").Index(i), a.IP)...)
		families.Insert(FamilyOf(a.IP))
	}
	if n := len(o.Status.PodIPs); n > 2 || n == 2 && families.Len() < 2 {
		errs = append(errs, field.Invalid(path.Child("podIPs"), o.Status.PodIPs, "may specify no more than one IP for each IP family"))
	}
	return errs
}

// ValidateBinding holds the order to run a pod on a node to its rules.
func ValidateBinding(o *corev1.Binding) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("target")
	if k := o.Target.Kind; k != "" && k != "Node" {
		errs = append(errs, field.NotSupported(path.Child("kind"), k, []string{"Node", "<empty>"}))
	}
	return append(errs, check.Required(path.Child("name"), o.Target.Name)...)
}

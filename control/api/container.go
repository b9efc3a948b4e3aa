package api

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// containers validates the containers of one pod.
type containers struct {
	spec    *corev1.PodSpec
	volumes map[string]*corev1.Volume
}

// kind says which rules a container is under.
type kind int

const (
	regular   kind = iota
	initial        // runs to its end before the next starts
	sidecar        // an init container that is always restarted
	ephemeral      // added to a running pod
)

func kindOf(c *corev1.Container) kind {
	if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return sidecar
	}
	return initial
}

func (v containers) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	hostPorts := map[string]bool{}
	for i := range v.spec.Containers {
		c := &v.spec.Containers[i]
		at := path.Child("containers").Index(i)
		errs = append(errs, v.container(c, regular, names, at)...)
		errs = append(errs, hostPortConflicts(c.Ports, hostPorts, at.Child("ports"))...)
	}
	if len(v.spec.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), ""))
	}
	for i := range v.spec.InitContainers {
		c := &v.spec.InitContainers[i]
		at := path.Child("initContainers").Index(i)
		k := kindOf(c)
		errs = append(errs, v.container(c, k, names, at)...)
		ports := hostPorts
		if k == initial {
			// It is over before any other holds the port.
			ports = map[string]bool{}
		}
		errs = append(errs, hostPortConflicts(c.Ports, ports, at.Child("ports"))...)
	}
	for i := range v.spec.EphemeralContainers {
		e := &v.spec.EphemeralContainers[i]
		at := path.Child("ephemeralContainers").Index(i)
		errs = append(errs, v.container((*corev1.Container)(&e.EphemeralContainerCommon), ephemeral, names, at)...)
		if t := e.TargetContainerName; t != "" && !v.isTarget(t) {
			errs = append(errs, field.NotFound(at.Child("targetContainerName"), t))
		}
	}
	return errs
}

func (v containers) isTarget(name string) bool {
	for _, c := range append(append([]corev1.Container(nil), v.spec.Containers...), v.spec.InitContainers...) {
		if c.Name == name {
			return true
		}
	}
	return false
}

func (v containers) container(c *corev1.Container, k kind, names sets.Set[string], path *field.Path) field.ErrorList {
	errs := requiredLabel(path.Child("name"), c.Name, names)
	switch {
	case c.Image == "":
		errs = append(errs, field.Required(path.Child("image"), ""))
	case strings.TrimSpace(c.Image) != c.Image:
		errs = append(errs, field.Invalid(path.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	errs = append(errs, check.OneOf(path.Child("terminationMessagePolicy"), c.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, check.OneOf(path.Child("imagePullPolicy"), c.ImagePullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)...)
	errs = append(errs, v.ports(c.Ports, path.Child("ports"))...)
	errs = append(errs, v.env(c, path)...)
	errs = append(errs, v.mounts(c, path)...)
	errs = append(errs, v.devices(c, path)...)
	errs = append(errs, v.lifecycle(c, k, path)...)
	errs = append(errs, v.restart(c, k, path)...)
	errs = append(errs, validateResources(&c.Resources, v.spec, path.Child("resources"))...)
	errs = append(errs, v.resize(c, path.Child("resizePolicy"))...)
	errs = append(errs, validateSecurity(c.SecurityContext, v.spec, path.Child("securityContext"))...)
	if k == ephemeral {
		errs = append(errs, forbidEphemeral(c, path)...)
	}
	return errs
}

// forbidEphemeral names what only the containers a pod begins with may have.
func forbidEphemeral(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	forbid := func(set bool, name string) {
		if set {
			errs = append(errs, field.Forbidden(path.Child(name), "cannot be set for an ephemeral container"))
		}
	}
	forbid(len(c.Ports) > 0, "ports")
	forbid(c.LivenessProbe != nil, "livenessProbe")
	forbid(c.ReadinessProbe != nil, "readinessProbe")
	forbid(c.StartupProbe != nil, "startupProbe")
	forbid(c.Lifecycle != nil, "lifecycle")
	forbid(len(c.Resources.Limits)+len(c.Resources.Requests)+len(c.Resources.Claims) > 0, "resources")
	forbid(len(c.ResizePolicy) > 0, "resizePolicy")
	forbid(c.RestartPolicy != nil, "restartPolicy")
	forbid(len(c.RestartPolicyRules) > 0, "restartPolicyRules")
	for i, m := range c.VolumeMounts {
		forbid(m.SubPath != "", fmt.Sprintf("volumeMounts[%d].subPath", i))
		forbid(m.SubPathExpr != "", fmt.Sprintf("volumeMounts[%d].subPathExpr", i))
	}
	return errs
}

func (v containers) ports(ports []corev1.ContainerPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, p := range ports {
		at := path.Index(i)
		if p.Name != "" {
			if bad := validation.IsValidPortName(p.Name); len(bad) > 0 {
				errs = append(errs, check.Invalid(at.Child("name"), p.Name, bad)...)
			} else if names.Has(p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
			names.Insert(p.Name)
		}
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs, check.Invalid(at.Child("containerPort"), p.ContainerPort, validation.IsValidPortNum(int(p.ContainerPort)))...)
		}
		if p.HostPort != 0 {
			errs = append(errs, check.Invalid(at.Child("hostPort"), p.HostPort, validation.IsValidPortNum(int(p.HostPort)))...)
		}
		if v.spec.HostNetwork && p.HostPort != p.ContainerPort {
			errs = append(errs, field.Invalid(at.Child("hostPort"), p.HostPort, "must be the containerPort when hostNetwork is true"))
		}
		if p.HostIP != "" {
			errs = append(errs, ip(at.Child("hostIP"), p.HostIP)...)
		}
		errs = append(errs, check.OneOf(at.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
	}
	return errs
}

func hostPortConflicts(ports []corev1.ContainerPort, taken map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range ports {
		if p.HostPort == 0 {
			continue
		}
		key := fmt.Sprintf("%s/%s/%d", p.Protocol, p.HostIP, p.HostPort)
		if taken[key] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("hostPort"), key))
		}
		taken[key] = true
	}
	return errs
}

// restart holds the container's own restart policy to what its kind allows.
func (v containers) restart(c *corev1.Container, k kind, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.RestartPolicy != nil && k != ephemeral {
		errs = append(errs, check.OneOf(path.Child("restartPolicy"), *c.RestartPolicy,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartPolicyNever)...)
	}
	at := path.Child("restartPolicyRules")
	rules := c.RestartPolicyRules
	if len(rules) > 0 && c.RestartPolicy == nil {
		errs = append(errs, field.Required(path.Child("restartPolicy"), "must be given when restartPolicyRules are"))
	}
	if len(rules) > 0 && k == sidecar {
		errs = append(errs, field.Forbidden(at, "may not be set for an init container that is always restarted"))
	}
	if len(rules) > maxRestartRules {
		errs = append(errs, field.TooLong(at, rules, maxRestartRules))
	}
	for i, r := range rules {
		errs = append(errs, check.OneOf(at.Index(i).Child("action"), r.Action, corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)...)
		if r.ExitCodes == nil {
			errs = append(errs, field.Required(at.Index(i).Child("exitCodes"), ""))
			continue
		}
		errs = append(errs, check.OneOf(at.Index(i).Child("exitCodes", "operator"), r.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if len(r.ExitCodes.Values) == 0 {
			errs = append(errs, field.Required(at.Index(i).Child("exitCodes", "values"), ""))
		} else if len(r.ExitCodes.Values) > maxRestartCodes {
			errs = append(errs, field.TooLong(at.Index(i).Child("exitCodes", "values"), "", maxRestartCodes))
		}
	}
	return errs
}

func (v containers) resize(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[corev1.ResourceName]()
	for i, p := range c.ResizePolicy {
		at := path.Index(i)
		errs = append(errs, check.OneOf(at.Child("resourceName"), p.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)...)
		errs = append(errs, check.OneOf(at.Child("restartPolicy"), p.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)...)
		if seen.Has(p.ResourceName) {
			errs = append(errs, field.Duplicate(at, p.ResourceName))
		}
		seen.Insert(p.ResourceName)
		if v.spec.RestartPolicy == corev1.RestartPolicyNever && p.RestartPolicy == corev1.RestartContainer {
			errs = append(errs, field.Invalid(at.Child("restartPolicy"), p.RestartPolicy, "must be NotRequired when the pod's restartPolicy is Never"))
		}
	}
	return errs
}

func port(path *field.Path, p intstr.IntOrString) field.ErrorList {
	if p.Type == intstr.Int {
		return check.Invalid(path, p.IntValue(), validation.IsValidPortNum(p.IntValue()))
	}
	return check.Invalid(path, p.StrVal, validation.IsValidPortName(p.StrVal))
}

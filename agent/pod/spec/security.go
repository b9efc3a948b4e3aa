package spec

import (
	"fmt"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// effective is what holds for one container: its own settings over the pod's.
func effective(pod *corev1.Pod, c *corev1.Container) corev1.SecurityContext {
	var out corev1.SecurityContext
	if c.SecurityContext != nil {
		out = *c.SecurityContext
	}
	p := pod.Spec.SecurityContext
	if p == nil {
		return out
	}
	inherit(&out.RunAsUser, p.RunAsUser)
	inherit(&out.RunAsGroup, p.RunAsGroup)
	inherit(&out.RunAsNonRoot, p.RunAsNonRoot)
	inherit(&out.SELinuxOptions, p.SELinuxOptions)
	inherit(&out.SeccompProfile, p.SeccompProfile)
	inherit(&out.AppArmorProfile, p.AppArmorProfile)
	return out
}

func inherit[T any](own **T, pods *T) {
	if *own == nil {
		*own = pods
	}
}

// VerifyNonRoot refuses a container that must not run as root and would, or that cannot be told.
func VerifyNonRoot(pod *corev1.Pod, c *corev1.Container, image Image) error {
	sc := effective(pod, c)
	if sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot {
		return nil
	}
	switch {
	case sc.RunAsUser != nil && *sc.RunAsUser == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy (pod: %q, container: %s)", PodName(pod), c.Name)
	case sc.RunAsUser != nil:
		return nil
	case image.Username != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root (pod: %q, container: %s)",
			image.Username, PodName(pod), c.Name)
	case image.UID == nil || *image.UID == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)", PodName(pod), c.Name)
	}
	return nil
}

func security(in *Input) *runtimeapi.LinuxContainerSecurityContext {
	sc := effective(in.Pod, in.Container)
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: targeted(namespaces(in.Pod, in.IDs), in.Target),
		Privileged:       isTrue(sc.Privileged),
		ReadonlyRootfs:   isTrue(sc.ReadOnlyRootFilesystem),
		NoNewPrivs:       sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
		SelinuxOptions:   seLinux(sc.SELinuxOptions),
		Seccomp:          seccomp(sc.SeccompProfile, in.Node),
		Apparmor:         appArmor(sc.AppArmorProfile),
	}
	out.SupplementalGroups, out.SupplementalGroupsPolicy = groups(in.Pod)
	if cap := sc.Capabilities; cap != nil {
		out.Capabilities = &runtimeapi.Capability{AddCapabilities: capabilities(cap.Add), DropCapabilities: capabilities(cap.Drop)}
	}
	out.RunAsUser, out.RunAsGroup = number(sc.RunAsUser), number(sc.RunAsGroup)
	if out.RunAsUser == nil && out.RunAsGroup != nil {
		// The CRI refuses a group without a user, so that of the image is said. Otherwise it is left to the runtime,
		// which knows its group too.
		if in.Image.Username != "" {
			out.RunAsUsername = in.Image.Username
		} else {
			out.RunAsUser = &runtimeapi.Int64Value{}
			if in.Image.UID != nil {
				out.RunAsUser.Value = *in.Image.UID
			}
		}
	}
	if sc.ProcMount == nil || *sc.ProcMount != corev1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = maskedPaths(), readonlyPaths()
	}
	return out
}

// targeted shares the processes of a container, unless the pod shares all of its own or the node's.
func targeted(ns *runtimeapi.NamespaceOption, target string) *runtimeapi.NamespaceOption {
	if target != "" && ns.GetPid() == runtimeapi.NamespaceMode_CONTAINER {
		ns.Pid, ns.TargetId = runtimeapi.NamespaceMode_TARGET, target
	}
	return ns
}

func isTrue(b *bool) bool { return b != nil && *b }

func capabilities(list []corev1.Capability) []string {
	var out []string
	for _, c := range list {
		out = append(out, string(c))
	}
	return out
}

func seLinux(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func seccomp(p *corev1.SeccompProfile, node *Node) *runtimeapi.SecurityProfile {
	if p == nil && node.SeccompDefault {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	}
	if p == nil {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	switch p.Type {
	case corev1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case corev1.SeccompProfileTypeLocalhost:
		out := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost}
		if p.LocalhostProfile != nil {
			out.LocalhostRef = filepath.Join(node.SeccompDir, *p.LocalhostProfile)
		}
		return out
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

func appArmor(p *corev1.AppArmorProfile) *runtimeapi.SecurityProfile {
	if p == nil {
		return nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case corev1.AppArmorProfileTypeLocalhost:
		out := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost}
		if p.LocalhostProfile != nil {
			out.LocalhostRef = *p.LocalhostProfile
		}
		return out
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

// maskedPaths hide what of the kernel tells about the node or can be used against it.
func maskedPaths() []string {
	return append([]string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}, nodeThrottles()...)
}

// nodeThrottles are those of this machine. CPUs do not get them while it runs.
var nodeThrottles = sync.OnceValue(func() []string { return throttles("/sys/devices/system/cpu") })

// throttles are where the kernel counts how often each CPU was slowed down for its heat: by that a container measures
// what others compute.
func throttles(cpus string) []string {
	found, err := filepath.Glob(filepath.Join(cpus, "cpu[0-9]*", "thermal_throttle"))
	if err != nil {
		return nil // a pattern that is wrong
	}
	return found
}

func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

package spec

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups/kube"
)

// Node is what of the node matters to its pods.
type Node struct {
	Name           string
	IPs            []string
	Memory         int64 // bytes
	Allocatable    corev1.ResourceList
	Groups         kube.Options
	RootDir        string
	LogDir         string
	SeccompDir     string // where profiles of type Localhost are
	SeccompDefault bool   // containers that name no profile have the runtime's
	ClusterDomain  string // the domain of host names with a subdomain
	ClusterDNS     []string
	Resolver       Resolver // the node's own
}

// The kernel's limits of a host name, and DNS's of one label of it.
const (
	maxHostname = 64
	maxLabel    = 63
)

// Sandbox is the configuration of a pod's sandbox; ids is nil where it has those of the node. It also returns what
// should be told about the pod's DNS.
func Sandbox(pod *corev1.Pod, node *Node, attempt uint32, cgroup string, ids *IDs) (*runtimeapi.PodSandboxConfig, []Warning, error) {
	hostname, err := Hostname(pod, node.ClusterDomain)
	if err != nil {
		return nil, nil, err
	}
	dns, warnings := dnsConfig(pod, node)
	annotations := maps.Clone(pod.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[OwnerAnnotation] = node.RootDir
	c := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt,
		},
		Hostname:     hostname,
		LogDirectory: LogDirectory(node.LogDir, pod),
		DnsConfig:    dns,
		PortMappings: portMappings(pod),
		Labels:       podLabels(pod),
		Annotations:  annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    cgroup,
			SecurityContext: sandboxSecurity(pod, ids),
			Sysctls:         sysctls(pod),
			Resources:       podResources(pod, node.Groups),
		},
	}
	return c, warnings, nil
}

// Hostname is the pod's, "" when it has the node's.
func Hostname(pod *corev1.Pod, clusterDomain string) (string, error) {
	if pod.Spec.HostNetwork {
		return "", nil
	}
	if overridden(pod) {
		return *pod.Spec.HostnameOverride, nil
	}
	name := ShortName(pod)
	if pod.Spec.SetHostnameAsFQDN == nil || !*pod.Spec.SetHostnameAsFQDN || pod.Spec.Subdomain == "" {
		return name, nil
	}
	fqdn := FQDN(pod, name, clusterDomain)
	if len(fqdn) > maxHostname {
		return "", fmt.Errorf("host name %s of the pod with its domain has %d characters, the kernel takes %d", fqdn, len(fqdn), maxHostname)
	}
	return fqdn, nil
}

// ShortName is the pod's host name without a domain.
func ShortName(pod *corev1.Pod) string {
	name := pod.Spec.Hostname
	if name == "" {
		name = pod.Name
	}
	if len(name) > maxLabel {
		name = strings.TrimRight(name[:maxLabel], "-.")
	}
	return name
}

// overridden says whether the pod's host name is one that has nothing to do with its name in a domain.
func overridden(pod *corev1.Pod) bool {
	return pod.Spec.HostnameOverride != nil && *pod.Spec.HostnameOverride != ""
}

// FQDN is the pod's host name with its domain, "" when it has no subdomain.
func FQDN(pod *corev1.Pod, hostname, clusterDomain string) string {
	if pod.Spec.Subdomain == "" || overridden(pod) {
		return ""
	}
	return strings.TrimSuffix(strings.Join([]string{hostname, pod.Spec.Subdomain, pod.Namespace, "svc", clusterDomain}, "."), ".")
}

func portMappings(pod *corev1.Pod) []*runtimeapi.PortMapping {
	if pod.Spec.HostNetwork {
		return nil
	}
	var out []*runtimeapi.PortMapping
	seen := map[string]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, p := range list[i].Ports {
				key := fmt.Sprint(p.Protocol, p.HostIP, p.HostPort)
				if p.HostPort == 0 || seen[key] {
					continue
				}
				seen[key] = true
				out = append(out, &runtimeapi.PortMapping{
					Protocol:      runtimeapi.Protocol(runtimeapi.Protocol_value[string(p.Protocol)]),
					ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
				})
			}
		}
	}
	return out
}

func sandboxSecurity(pod *corev1.Pod, ids *IDs) *runtimeapi.LinuxSandboxSecurityContext {
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod, ids),
		Privileged:       anyPrivileged(pod),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return out
	}
	out.RunAsUser = number(sc.RunAsUser)
	// The CRI refuses a group without a user.
	if sc.RunAsUser != nil {
		out.RunAsGroup = number(sc.RunAsGroup)
	}
	out.SupplementalGroups, out.SupplementalGroupsPolicy = groups(pod)
	out.SelinuxOptions = seLinux(sc.SELinuxOptions)
	return out
}

func number(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}

func groups(pod *corev1.Pod) ([]int64, runtimeapi.SupplementalGroupsPolicy) {
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return nil, runtimeapi.SupplementalGroupsPolicy_Merge
	}
	var out []int64
	out = append(out, sc.SupplementalGroups...)
	if sc.FSGroup != nil {
		out = append(out, *sc.FSGroup)
	}
	if sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return out, runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return out, runtimeapi.SupplementalGroupsPolicy_Merge
}

func anyPrivileged(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && sc.Privileged != nil && *sc.Privileged {
				return true
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if sc := pod.Spec.EphemeralContainers[i].SecurityContext; sc != nil && isTrue(sc.Privileged) {
			return true
		}
	}
	return false
}

func namespaces(pod *corev1.Pod, ids *IDs) *runtimeapi.NamespaceOption {
	mode := func(host bool) runtimeapi.NamespaceMode {
		if host {
			return runtimeapi.NamespaceMode_NODE
		}
		return runtimeapi.NamespaceMode_POD
	}
	out := &runtimeapi.NamespaceOption{
		Network: mode(pod.Spec.HostNetwork), Ipc: mode(pod.Spec.HostIPC), Pid: runtimeapi.NamespaceMode_CONTAINER,
		UsernsOptions: ids.namespace(),
	}
	switch {
	case pod.Spec.HostPID:
		out.Pid = runtimeapi.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		out.Pid = runtimeapi.NamespaceMode_POD
	}
	return out
}

func sysctls(pod *corev1.Pod) map[string]string {
	if pod.Spec.SecurityContext == nil || len(pod.Spec.SecurityContext.Sysctls) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		// The API takes both spellings, the runtimes take one.
		out[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
	}
	return out
}

// podResources tells the runtime what the pod as a whole may use. The files that are written beside are the pod group's
// own.
func podResources(pod *corev1.Pod, o kube.Options) *runtimeapi.LinuxContainerResources {
	out := resources(kube.PodResources(pod, o))
	out.Unified = nil
	return out
}

// resources puts a cgroup's settings into the CRI's words.
func resources(r *specs.LinuxResources) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{}
	if cpu := r.CPU; cpu != nil {
		if cpu.Shares != nil {
			out.CpuShares = int64(*cpu.Shares)
		}
		if cpu.Quota != nil {
			out.CpuQuota = *cpu.Quota
		}
		if cpu.Period != nil {
			out.CpuPeriod = int64(*cpu.Period)
		}
		out.CpusetCpus, out.CpusetMems = cpu.Cpus, cpu.Mems
	}
	if r.Memory != nil && r.Memory.Limit != nil {
		out.MemoryLimitInBytes = *r.Memory.Limit
		if r.Memory.Swap != nil {
			out.MemorySwapLimitInBytes = *r.Memory.Swap
		}
	}
	for _, h := range r.HugepageLimits {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: h.Pagesize, Limit: h.Limit})
	}
	out.Unified = maps.Clone(r.Unified)
	if cpu := r.CPU; cpu != nil && cpu.Burst != nil {
		// The CRI has no field for it; runtimes take the file's name.
		if out.Unified == nil {
			out.Unified = map[string]string{}
		}
		out.Unified["cpu.max.burst"] = strconv.FormatUint(*cpu.Burst, 10)
	}
	return out
}

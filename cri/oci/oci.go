// Package oci turns what the CRI says about a container, and what its image says, into an OCI runtime specification.
//
// [Spec] is pure: what it needs to know of the machine and of the image's files is gathered by its caller ([ReadHost],
// [LoadDevice], [ReadFile], [ResolveUser]) and handed in.
package oci

import (
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Input is all that a container's specification depends on.
type Input struct {
	ID         string
	SandboxID  string
	Sandbox    *runtimeapi.PodSandboxConfig
	Privileged bool // the sandbox may have privileged containers, whatever it was made with
	Container  *runtimeapi.ContainerConfig
	Image      ocispec.ImageConfig
	Rootfs     string // where the root file system is mounted
	Cgroup     string // path of the container's cgroup, see [CgroupPath]

	IDs        *IDs       // of the pod, from [UserNamespace]
	User       specs.User // from [ResolveUser]
	Namespaces Namespaces
	Files      Files

	Volumes     []Volume              // that the image wants
	ImageMounts []string              // for each of Container.Mounts that is an image: where it is mounted
	Devices     [][]specs.LinuxDevice // for each of Container.Devices
	Seccomp     []byte                // the profile [LocalhostProfile] names
	Armored     bool                  // the kernel has the profile [AppArmorDefault]
	Host        Host
}

// Namespaces are the paths of the pod's namespaces; "" is the host's.
type Namespaces struct {
	Network, IPC, UTS string
	User              string
	PID               string // the pod's shared one, or the target container's
}

// Volume is a directory of the host and where the container has it.
type Volume struct{ Path, Source string }

// Files are the pod's own files on the host; "" where the pod has none.
type Files struct {
	Hosts, Hostname, ResolvConf, Shm string
}

// Host is what of the machine matters to a specification.
type Host struct {
	Hostname       string
	Capabilities   []string            // which this process has, and so may give
	Devices        []specs.LinuxDevice // all of /dev; only privileged containers need them
	Unified        bool                // cgroup v2 only
	Systemd        bool                // systemd makes the cgroups
	Hugetlb        bool                // the controller is there
	Swap           bool                // swap is accounted
	OOMScoreAdjMin int                 // lowest value this process may set
	AppArmor       bool
	SELinux        bool
}

// part fills in one part of the specification. The parts run in order; later ones may read what earlier ones wrote.
type part func(in *Input, s *specs.Spec) error

// Spec returns the specification of a container.
func Spec(in Input) (*specs.Spec, error) {
	if in.Container == nil || in.Sandbox == nil {
		return nil, fmt.Errorf("specify container: its or its sandbox's configuration is missing")
	}
	s := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{},
		Root:    &specs.Root{Path: in.Rootfs, Readonly: security(in.Container).GetReadonlyRootfs()},
		Linux:   &specs.Linux{CgroupsPath: in.Cgroup, Resources: &specs.LinuxResources{}},
	}
	if in.Host.Systemd {
		unit, ok := UnitPath(in.Cgroup)
		if !ok {
			return nil, fmt.Errorf("specify container: systemd makes the cgroups, and the pod's parent of %s is not a slice", in.Cgroup)
		}
		s.Linux.CgroupsPath = unit
	}
	for _, p := range []part{
		process,
		namespaces,
		capabilities,
		devices,
		resources,
		mounts,
		confinement,
		seccompFilter, // reads the capabilities
		annotations,
	} {
		if err := p(&in, s); err != nil {
			return nil, fmt.Errorf("specify container: %w", err)
		}
	}
	return s, nil
}

func security(c *runtimeapi.ContainerConfig) *runtimeapi.LinuxContainerSecurityContext {
	return c.GetLinux().GetSecurityContext()
}

// annotations tells other runtimes and plugins which pod this is, under the names they know from other CRI runtimes.
func annotations(in *Input, s *specs.Spec) error {
	meta := in.Sandbox.GetMetadata()
	s.Annotations = map[string]string{
		"io.kubernetes.cri.container-type":    "container",
		"io.kubernetes.cri.container-name":    in.Container.GetMetadata().GetName(),
		"io.kubernetes.cri.image-name":        in.Container.GetImage().GetImage(),
		"io.kubernetes.cri.sandbox-id":        in.SandboxID,
		"io.kubernetes.cri.sandbox-name":      meta.GetName(),
		"io.kubernetes.cri.sandbox-namespace": meta.GetNamespace(),
		"io.kubernetes.cri.sandbox-uid":       meta.GetUid(),
	}
	if in.Host.Systemd {
		// systemd would keep a scope whose processes were killed for want of memory until somebody looks.
		s.Annotations["org.systemd.property.CollectMode"] = "'inactive-or-failed'"
	}
	return nil
}

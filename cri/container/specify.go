package container

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/rootfs"
	"github.com/berth-node/berth/cri/sandbox"
	"github.com/berth-node/berth/cri/step"
	"github.com/containerd/nri/pkg/api"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// notices are what was said already, once is enough.
type notices struct {
	mu   sync.Mutex
	said map[string]bool
}

// first says whether key was not said before, and notes that it is now.
func (n *notices) first(key string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.said[key] {
		return false
	}
	if n.said == nil {
		n.said = map[string]bool{}
	}
	n.said[key] = true
	return true
}

// specifier writes the specifications of containers.
type specifier struct {
	host    *host.Host
	pods    *sandbox.Sandboxes
	table   *Table
	bundles *bundles
	told    *told
	warned  notices
}

// writeSpec reads the image's users from the mounted root, builds the specification and writes it.
func (s *specifier) writeSpec(c *Container, img image.Image) step.Act {
	return func(ctx context.Context) error {
		in, err := s.specInput(ctx, c, img)
		if err != nil {
			return err
		}
		spec, err := oci.Spec(in)
		if err != nil {
			return fmt.Errorf("%w: %w", fault.ErrInvalid, err)
		}
		err = s.host.Classes.Apply(spec, c.Config.GetMetadata().GetName(), c.Config.GetAnnotations(), c.Sandbox.Config.GetAnnotations())
		if err != nil {
			return fmt.Errorf("%w: %w", fault.ErrInvalid, err)
		}
		devices, err := host.CDINames(c.Config)
		if err != nil {
			return err
		}
		if err := s.host.CDI.Inject(spec, devices); err != nil {
			return err
		}
		others, err := s.adjust(ctx, c, spec)
		if err != nil {
			return err
		}
		c.adapt(spec)
		c.mu.Lock()
		c.others = others
		c.rec.User, c.rec.Poststop = in.User, hasPoststop(spec) && c.Sandbox.External() == nil
		c.rec.PIDNamespace, c.rec.Traces = joins(spec), traces(spec)
		c.exec = c.execBaseOf(spec)
		c.mu.Unlock()
		return host.WriteSpec(s.host.Paths.Container(c.ID).Spec(), spec)
	}
}

// joins is the path of the PID namespace that a container joins, "" where it has one of its own or the host's.
func joins(spec *specs.Spec) string {
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type == specs.PIDNamespace {
			return ns.Path
		}
	}
	return ""
}

// traces says whether the processes of a container could look into any other of their PID namespace. The capability
// counts in the user namespace of who is looked at, which until its program runs is the host's.
func traces(spec *specs.Spec) bool {
	has := func(t specs.LinuxNamespaceType) bool {
		return slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == t })
	}
	caps := spec.Process.Capabilities
	if caps == nil || !has(specs.PIDNamespace) || has(specs.UserNamespace) {
		return false
	}
	return slices.ContainsFunc([][]string{caps.Bounding, caps.Permitted, caps.Inheritable, caps.Ambient}, func(set []string) bool {
		return slices.Contains(set, "CAP_SYS_PTRACE")
	})
}

func (s *specifier) specInput(ctx context.Context, c *Container, img image.Image) (oci.Input, error) {
	root := s.host.Paths.Container(c.ID).Rootfs()
	in := oci.Input{
		ID: c.ID, SandboxID: c.Sandbox.ID, Sandbox: c.Sandbox.Config, Privileged: c.pod.GetLinux().GetSecurityContext().GetPrivileged(), Container: c.Config, Image: img.Config.Config,
		IDs: c.Sandbox.IDs, Rootfs: root, Cgroup: c.Record().Cgroup, Host: s.host.Host,
	}
	var err error
	if in.ImageMounts, err = s.bundles.imageMountPaths(c); err != nil {
		return in, err
	}
	if in.Volumes, err = s.bundles.volumesOf(ctx, c); err != nil {
		return in, err
	}
	sc := c.Config.GetLinux().GetSecurityContext()
	passwd, err := rootfs.ReadFile(root, "/etc/passwd")
	if err != nil {
		return in, err
	}
	group, err := rootfs.ReadFile(root, "/etc/group")
	if err != nil {
		return in, err
	}
	if in.User, err = oci.ResolveUser(sc, img.Config.Config.User, passwd, group); err != nil {
		return in, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	if in.Namespaces, err = s.namespacesFor(c); err != nil {
		return in, err
	}
	if in.Files, err = s.pods.Builder.FilesFor(c.Sandbox, c.Config); err != nil {
		return in, err
	}
	if in.Seccomp, err = localhostProfile(c); err != nil {
		return in, err
	}
	if in.Armored, err = s.armored(c); err != nil {
		return in, err
	}
	for _, d := range c.Config.GetDevices() {
		nodes, err := oci.LoadDevice(d.GetHostPath(), d.GetContainerPath())
		if err != nil {
			return in, err
		}
		in.Devices = append(in.Devices, nodes)
	}
	if sc.GetPrivileged() {
		if in.Host.Devices, err = oci.HostDevices(); err != nil {
			return in, err
		}
	}
	if err := s.host.Mounts.Prepare(c.Config.GetMounts()); err != nil {
		return in, err
	}
	s.warn(c, in)
	return in, nil
}

// localhostProfile is the seccomp profile of a file of the node, nil when the container names none.
func localhostProfile(c *Container) ([]byte, error) {
	path, err := oci.LocalhostProfile(c.Config)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	if path == "" {
		return nil, nil
	}
	// With its bounds, since any path may be named: a device would never end.
	profile, err := rootfs.ReadFile("/", path)
	if err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	if profile == nil {
		return nil, fault.Invalidf("seccomp profile %s: no such file", path)
	}
	return profile, nil
}

// armorTimeout is how long a start waits for the profile, and for who loads it at the moment: two loads.
const armorTimeout = time.Minute

// armored has the kernel know AppArmor's default profile, if the container is to have it.
func (s *specifier) armored(c *Container) (bool, error) {
	if !s.host.Host.AppArmor || !oci.WantsDefault(c.Config) {
		return false, nil
	}
	// One load is for all who wait, whether or not this caller goes on.
	ctx, cancel := context.WithTimeout(context.Background(), armorTimeout)
	defer cancel()
	err := s.host.Armor.Ensure(ctx)
	if errors.Is(err, oci.ErrNoProfile) {
		if s.warned.first("apparmor") {
			s.host.Log.Warn("containers run without an AppArmor profile", append(c.LogAttrs(), "error", err)...)
		}
		return false, nil
	}
	return err == nil, err
}

// namespacesFor are the namespaces a container joins.
func (s *specifier) namespacesFor(c *Container) (oci.Namespaces, error) {
	ns := oci.Namespaces{User: c.Sandbox.UserNS(s.host.Paths)}
	k, err := c.Sandbox.Live()
	if err != nil {
		return ns, err
	}
	opts := c.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	pod := c.Sandbox.NamespaceOptions()
	if !c.Sandbox.HostNetwork() && opts.GetNetwork() != runtimeapi.NamespaceMode_NODE {
		ns.Network, ns.UTS = c.Sandbox.Record().NetNS, k.NSPath("uts")
	}
	if pod.GetIpc() != runtimeapi.NamespaceMode_NODE && opts.GetIpc() != runtimeapi.NamespaceMode_NODE {
		ns.IPC = k.NSPath("ipc")
	}
	switch opts.GetPid() {
	case runtimeapi.NamespaceMode_POD:
		if pod.GetPid() == runtimeapi.NamespaceMode_POD {
			ns.PID = k.NSPath("pid")
		}
	case runtimeapi.NamespaceMode_TARGET:
		target, _, err := s.table.Running(opts.GetTargetId())
		if err != nil {
			return ns, fmt.Errorf("target container: %w", err)
		}
		if target.Sandbox != c.Sandbox {
			return ns, fault.Invalidf("target container %q is not in the same sandbox", opts.GetTargetId())
		}
		ns.PID = fmt.Sprintf("/proc/%d/ns/pid", target.Record().Pid)
	}
	return ns, nil
}

// warn says once what containers ask for and this machine cannot give.
func (s *specifier) warn(c *Container, in oci.Input) {
	once := func(key string, msg string, args ...any) {
		if s.warned.first(key) {
			s.host.Log.Warn(msg, append(args, c.LogAttrs()...)...)
		}
	}
	if want := int(c.Config.GetLinux().GetResources().GetOomScoreAdj()); want < s.host.Host.OOMScoreAdjMin {
		once("oom", "oom_score_adj cannot be lowered without CAP_SYS_RESOURCE, so containers run with this process's own",
			"wanted", want, "given", s.host.Host.OOMScoreAdjMin)
	}
	if oci.Unlabelled(&in) {
		once("selinux", "SELinux options are ignored: this kernel has no SELinux, or no policy of it")
	}
	if missing := oci.Ungranted(&in); len(missing) > 0 {
		once("caps "+strings.Join(missing, ","), "capabilities are left out that this process does not have itself", "capabilities", missing)
	}
}

// adjust lets plugins change the specification of a container to be. It returns what they want of others.
func (s *specifier) adjust(ctx context.Context, c *Container, spec *specs.Spec) (others []*api.ContainerUpdate, err error) {
	if !s.host.Plugins.Active() {
		return nil, nil
	}
	was := spec.Linux.CgroupsPath
	asked := s.told.pluginContainer(c, spec)
	r, err := s.host.Plugins.CreateContainer(ctx, c.Sandbox.ForPlugins(), asked)
	c.mu.Lock()
	c.announced = true // to some of them, even if others have refused
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	nri.Remove(spec, asked)
	err = nri.Adjust(spec, r.GetAdjust(), nri.Limits{
		OOMScoreAdjMin: s.host.Host.OOMScoreAdjMin, Swap: s.host.Host.Swap, InjectCDI: s.host.CDI.Inject,
		BlockIO: s.host.Classes.BlockIO, RDT: s.host.Classes.RDT, RDTReady: s.host.Classes.RDTReady,
	})
	if err != nil {
		return nil, err
	}
	if _, given := r.GetAdjust().GetLinux().GetResources().GetUnified()[oci.WeightFile]; s.host.Host.Unified && !given {
		// Else the weight that the container's own shares were made would win over a plugin's.
		oci.Weigh(spec.Linux.Resources)
	}
	if err := s.setSysctls(c, spec); err != nil {
		return nil, err
	}
	if err := s.noteAdjusted(c, r.GetAdjust().GetLinux().GetResources()); err != nil {
		return nil, err
	}
	if now := spec.Linux.CgroupsPath; now != was {
		// The group is killed and removed with the container.
		path := oci.KernelPath(now)
		if s.host.Cgroups.Exists(path) {
			return nil, fmt.Errorf("adjust container as plugins ask: cgroup %s is there already", path)
		}
		c.mu.Lock()
		c.rec.Cgroup = path
		c.mu.Unlock()
	}
	return r.GetUpdate(), nil
}

// setSysctls sets in the pod's network what of a container's sysctls belongs there. The launcher runs in the pod's
// network itself, and libcontainer takes a network that it is in for the host's.
func (s *specifier) setSysctls(c *Container, spec *specs.Spec) error {
	mine := map[string]string{}
	for key, value := range spec.Linux.Sysctl {
		if strings.HasPrefix(key, "net.") || strings.HasPrefix(key, "net/") {
			mine[key] = value
			delete(spec.Linux.Sysctl, key)
		}
	}
	if len(mine) == 0 {
		return nil
	}
	netns := c.Sandbox.Record().NetNS
	if netns == "" {
		return fmt.Errorf("adjust container as plugins ask: sysctls %v are those of the host's network", slices.Sorted(maps.Keys(mine)))
	}
	return ns.WithNetNSPath(netns, func(ns.NetNS) error {
		for key, value := range mine {
			if _, err := sysctl.Sysctl(key, value); err != nil {
				return fmt.Errorf("set sysctl %s: %w", key, err)
			}
		}
		return nil
	})
}

// noteAdjusted notes what plugins have made of the container's resources, for later changes to start from.
func (s *specifier) noteAdjusted(c *Container, adjusted *api.LinuxResources) error {
	if adjusted == nil {
		return nil
	}
	merged := &runtimeapi.LinuxContainerResources{}
	if err := ledger.Decode(c.Record().Resources, merged); err != nil {
		return err
	}
	mergeResources(merged, nri.Plain(adjusted))
	raw, err := ledger.Encode(merged)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rec.Resources = raw
	return nil
}

package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/internal/filetree"
)

// create makes a container in a sandbox, up to its root file system being mounted and its specification written. pod is what the client
// says of the sandbox now: a container that it has added since may be privileged in one that was not made for that.
func (cs *containers) create(ctx context.Context, sandboxID string, cfg *runtimeapi.ContainerConfig, pod *runtimeapi.PodSandboxConfig) (string, error) {
	if cfg.GetMetadata().GetName() == "" {
		return "", invalidf("container metadata must include a name")
	}
	sb, err := cs.pods.byID.get(sandboxID)
	if err != nil {
		return "", err
	}
	if err := sb.obscured(); err != nil {
		return "", fmt.Errorf("create container: %w", err)
	}
	var h handler.Handler
	if r := sb.record().Runtime; r != nil {
		h = *r
	}
	img, err := imageFor(cs.images, cfg.GetImage().GetImage(), h)
	if err != nil {
		return "", fmt.Errorf("create container: image %q: %w", cfg.GetImage().GetImage(), err)
	}
	userns := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if err := oci.SameUserNamespace(sb.namespaceOptions().GetUsernsOptions(), userns); err != nil {
		return "", fmt.Errorf("create container: %w: %w", errInvalid, err)
	}
	c, err := cs.createHeld(ctx, sb, cfg, pod, img)
	if err != nil {
		return "", fmt.Errorf("create container: %w", err)
	}
	cs.applyUpdates(ctx, c.others)
	return c.id, nil
}

// createHeld makes a container while no plugin comes.
func (cs *containers) createHeld(ctx context.Context, sb *sandbox, cfg *runtimeapi.ContainerConfig, pod *runtimeapi.PodSandboxConfig, img image.Image) (*container, error) {
	defer cs.hold()()
	c, err := cs.begin(sb, cfg, img)
	if err != nil {
		return nil, err
	}
	c.pod = pod
	if err := c.op.lock(ctx); err != nil {
		return nil, errors.Join(err, cs.drop(c))
	}
	defer c.op.unlock()
	if err := cs.make(ctx, c, img); err != nil {
		cs.tellNotCreated(context.WithoutCancel(ctx), c)
		return nil, err
	}
	cs.events.container(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, c)
	cs.tellCreated(ctx, c)
	return c, nil
}

// make makes what the record announces. What fails leaves nothing, or a container to be removed, where even undoing failed.
func (cs *containers) make(ctx context.Context, c *container, img image.Image) error {
	// Only now that the sandbox knows the container: a stop of it either finds the container or is seen here.
	if _, err := c.sandbox.live(); err != nil {
		return errors.Join(err, cs.drop(c))
	}
	undone, err := cs.runner.run(ctx, c, "create container", cs.plan(c, img))
	if err == nil {
		if err = cs.update(c, func(r *containerRecord) { r.State = containerCreated }); err == nil {
			return nil
		}
		undone = cs.undo(context.WithoutCancel(ctx), c, "create container", cs.plan(c, img)) == nil
	}
	if undone {
		return errors.Join(err, cs.drop(c))
	}
	cs.note(c, func(r *containerRecord) {
		r.State, r.ExitCode, r.Reason, r.Message, r.FinishedAt = containerExited, codeStartError, reasonStartError, err.Error(), time.Now().UnixNano()
	})
	close(c.done)
	return err
}

// begin reserves the name and writes the record of a container to be.
func (cs *containers) begin(sb *sandbox, cfg *runtimeapi.ContainerConfig, img image.Image) (*container, error) {
	cfg = cs.nameImages(cfg)
	// The environment is needed for the specification only, which is in memory, and records are on a disk: it may have secrets.
	kept, _ := proto.Clone(cfg).(*runtimeapi.ContainerConfig)
	kept.Envs = nil
	raw, err := encode(kept)
	if err != nil {
		return nil, err
	}
	resources, err := encode(cfg.GetLinux().GetResources())
	if err != nil {
		return nil, err
	}
	sig, err := oci.StopSignal(cfg.GetStopSignal(), img.StopSignal())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	id := newID()
	rec := containerRecord{
		ID: id, SandboxID: sb.id, Name: containerName(cfg.GetMetadata(), sb.cfg.GetMetadata()), State: containerCreating, Config: raw,
		CreatedAt: time.Now().UnixNano(), ImageID: img.ID, ImageRef: imageRef(img), Layer: img.TopLayer, StopSignal: int(sig), Resources: resources,
		Volumes: anonymousVolumes(img, cfg), LogPath: logPath(sb.cfg, cfg), Cgroup: cs.cgroupOf(sb.cfg.GetLinux().GetCgroupParent(), id),
	}
	if len(img.Tags) > 0 {
		rec.ImageName = img.Tags[0]
	}
	if err := cs.names.reserve(rec.Name, id); err != nil {
		return nil, fmt.Errorf("reserve container name: %w", err)
	}
	if err := cs.records.put(id, rec); err != nil {
		cs.names.release(id)
		return nil, errors.Join(err, cs.records.drop(id, cs.records.own(rec)))
	}
	c := newContainer(rec, cfg, sb)
	cs.byID.put(id, c)
	sb.add(c)
	return c, nil
}

// plan is what a container is made of before it is started. img is not looked at by the undos.
func (cs *containers) plan(c *container, img image.Image) plan {
	return plan{
		{{"bundle", cs.makeBundle(c), cs.removeBundle(c)}},
		{{"snapshot", cs.prepare(c), cs.removeSnapshot(c)}},
		{{"rootfs", cs.mountRootfs(c), cs.unmountRootfs(c)}},
		{{"images", cs.mountImages(c), cs.unmountImages(c)}},
		{{"volumes", cs.makeVolumes(c), cs.removeVolumes(c)}},
		{{"specification", cs.writeSpec(c, img), nil}},
	}
}

func (cs *containers) makeBundle(c *container) act {
	return func(context.Context) error {
		if p := c.record().LogPath; p != "" {
			if err := cs.mounts.makeDir(filepath.Dir(p)); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(cs.paths.rootfs(c.id), 0o700); err != nil {
			return err
		}
		if err := cs.keepRuntime(c); err != nil || c.sandbox.ids == nil {
			return err
		}
		// The pod's root passes through it to its root file system, and may do no more.
		bundle := cs.paths.container(c.id)
		return errors.Join(os.Chown(bundle, 0, int(c.sandbox.ids.Root().GID)), os.Chmod(bundle, 0o710))
	}
}

// removeBundle removes file by file, so that a mount that is still there stops it instead of being emptied.
func (cs *containers) removeBundle(c *container) act {
	return func(ctx context.Context) error {
		if err := cs.forgetRuntime(ctx, c); err != nil {
			return err
		}
		return removeContainerDir(cs.paths, c.id)
	}
}

func removeContainerDir(l layout, id string) error {
	if err := os.RemoveAll(filepath.Join(l.state(), id)); err != nil {
		return err
	}
	dirs, err := os.ReadDir(l.imageMounts(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, d := range dirs {
		if err := remove(filepath.Join(l.imageMounts(id), d.Name())); err != nil {
			return err
		}
	}
	if err := removeRootfs(l.rootfs(id)); err != nil {
		return err
	}
	for _, p := range []string{l.imageMounts(id), l.spec(id), l.filter(id), l.container(id)} {
		if err := remove(p); err != nil {
			return err
		}
	}
	return nil
}

// removeRootfs removes the place a container's root file system was mounted at. A launcher that was killed together with its
// keeper may leave an init behind that goes on for a moment: what it makes after the unmount lands in the bare directory. It
// is removed only when the kernel has no mount there, so that nothing of a container or a volume can ever be reached.
func removeRootfs(dir string) error {
	err := remove(dir)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("remove %s: %w", dir, unix.EBUSY)
	}
	return filetree.RemoveAll(context.Background(), dir)
}

func (cs *containers) prepare(c *container) act {
	return func(ctx context.Context) error {
		_, err := cs.snaps.Prepare(ctx, c.id, c.record().Layer)
		return err
	}
}

func (cs *containers) removeSnapshot(c *container) act {
	return func(ctx context.Context) error { return cs.snaps.Remove(ctx, c.id) }
}

func (cs *containers) mountRootfs(c *container) act {
	return func(ctx context.Context) error {
		mounts, err := cs.snaps.Prepare(ctx, c.id, c.record().Layer) // gives the same again
		if err != nil {
			return err
		}
		return cs.mounts.mount(cs.mapped(c.sandbox, mounts), cs.paths.rootfs(c.id))
	}
}

// mapped shows the files of a snapshot with the ids of the pod.
func (cs *containers) mapped(sb *sandbox, mounts []snapshot.Mount) []snapshot.Mount {
	if sb.ids == nil {
		return mounts
	}
	out := slices.Clone(mounts)
	for i := range out {
		out[i].IDs = &snapshot.IDs{UserNS: cs.userNS(sb), UID: sb.ids.Root().UID, GID: sb.ids.Root().GID}
	}
	return out
}

func (cs *containers) unmountRootfs(c *container) act {
	return func(context.Context) error { return cs.mounts.unmount(cs.paths.rootfs(c.id)) }
}

// writeSpec reads the image's users from the mounted root, builds the specification and writes it.
func (cs *containers) writeSpec(c *container, img image.Image) act {
	return func(ctx context.Context) error {
		in, err := cs.specInput(ctx, c, img)
		if err != nil {
			return err
		}
		spec, err := oci.Spec(in)
		if err != nil {
			return fmt.Errorf("%w: %w", errInvalid, err)
		}
		err = cs.classes.Apply(spec, c.cfg.GetMetadata().GetName(), c.cfg.GetAnnotations(), c.sandbox.cfg.GetAnnotations())
		if err != nil {
			return fmt.Errorf("%w: %w", errInvalid, err)
		}
		devices, err := cdiNames(c.cfg)
		if err != nil {
			return err
		}
		if err := cs.cdi.inject(spec, devices); err != nil {
			return err
		}
		others, err := cs.adjust(ctx, c, spec)
		if err != nil {
			return err
		}
		c.adapt(spec)
		c.mu.Lock()
		c.others = others
		c.rec.User, c.rec.Poststop = in.User, hasPoststop(spec) && c.sandbox.external() == nil
		c.rec.PIDNamespace, c.rec.Traces = joins(spec), traces(spec)
		c.exec = c.execBaseOf(spec)
		c.mu.Unlock()
		return writeSpec(cs.paths.spec(c.id), spec)
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

// traces says whether the processes of a container could look into any other of their PID namespace. The capability counts in the user
// namespace of who is looked at, which until its program runs is the host's.
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

func writeSpec(path string, spec *specs.Spec) error {
	b, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode specification: %w", err)
	}
	return os.WriteFile(path, b, 0o600)
}

func (cs *containers) specInput(ctx context.Context, c *container, img image.Image) (oci.Input, error) {
	rootfs := cs.paths.rootfs(c.id)
	in := oci.Input{
		ID: c.id, SandboxID: c.sandbox.id, Sandbox: c.sandbox.cfg, Privileged: c.pod.GetLinux().GetSecurityContext().GetPrivileged(), Container: c.cfg, Image: img.Config.Config,
		IDs: c.sandbox.ids, Rootfs: rootfs, Cgroup: c.record().Cgroup, Host: cs.host,
	}
	var err error
	if in.ImageMounts, err = cs.imageMountPaths(c); err != nil {
		return in, err
	}
	if in.Volumes, err = cs.volumesOf(ctx, c); err != nil {
		return in, err
	}
	sc := c.cfg.GetLinux().GetSecurityContext()
	passwd, err := oci.ReadFile(rootfs, "/etc/passwd")
	if err != nil {
		return in, err
	}
	group, err := oci.ReadFile(rootfs, "/etc/group")
	if err != nil {
		return in, err
	}
	if in.User, err = oci.ResolveUser(sc, img.Config.Config.User, passwd, group); err != nil {
		return in, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if in.Namespaces, err = cs.namespacesFor(c); err != nil {
		return in, err
	}
	if in.Files, err = cs.pods.filesFor(c.sandbox, c.cfg); err != nil {
		return in, err
	}
	if path, err := oci.LocalhostProfile(c.cfg); err != nil {
		return in, fmt.Errorf("%w: %w", errInvalid, err)
	} else if path != "" {
		// With its bounds, since any path may be named: a device would never end.
		if in.Seccomp, err = oci.ReadFile("/", path); err != nil {
			return in, fmt.Errorf("seccomp profile: %w", err)
		}
		if in.Seccomp == nil {
			return in, invalidf("seccomp profile %s: no such file", path)
		}
	}
	if in.Armored, err = cs.armored(c); err != nil {
		return in, err
	}
	for _, d := range c.cfg.GetDevices() {
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
	if err := cs.mounts.prepare(c.cfg.GetMounts()); err != nil {
		return in, err
	}
	cs.warn(c, in)
	return in, nil
}

// armored has the kernel know AppArmor's default profile, if the container is to have it.
func (cs *containers) armored(c *container) (bool, error) {
	if !cs.host.AppArmor || !oci.WantsDefault(c.cfg) {
		return false, nil
	}
	// One load is for all who wait, whether or not this caller goes on.
	err := cs.armor.Ensure(context.Background())
	if errors.Is(err, oci.ErrNoProfile) {
		if _, said := cs.warned.LoadOrStore("apparmor", true); !said {
			cs.log.Warn("containers run without an AppArmor profile", append(c.logAttrs(), "error", err)...)
		}
		return false, nil
	}
	return err == nil, err
}

// namespacesFor are the namespaces a container joins.
func (cs *containers) namespacesFor(c *container) (oci.Namespaces, error) {
	ns := oci.Namespaces{User: cs.userNS(c.sandbox)}
	k, err := c.sandbox.live()
	if err != nil {
		return ns, err
	}
	opts := c.cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	pod := c.sandbox.namespaceOptions()
	if !c.sandbox.hostNetwork() && opts.GetNetwork() != runtimeapi.NamespaceMode_NODE {
		ns.Network, ns.UTS = c.sandbox.record().NetNS, k.NSPath("uts")
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
		target, _, err := cs.running(opts.GetTargetId())
		if err != nil {
			return ns, fmt.Errorf("target container: %w", err)
		}
		if target.sandbox != c.sandbox {
			return ns, invalidf("target container %q is not in the same sandbox", opts.GetTargetId())
		}
		ns.PID = fmt.Sprintf("/proc/%d/ns/pid", target.record().Pid)
	}
	return ns, nil
}

// warn says once what containers ask for and this machine cannot give.
func (cs *containers) warn(c *container, in oci.Input) {
	once := func(key string, msg string, args ...any) {
		if _, said := cs.warned.LoadOrStore(key, true); !said {
			cs.log.Warn(msg, append(args, c.logAttrs()...)...)
		}
	}
	if want := int(c.cfg.GetLinux().GetResources().GetOomScoreAdj()); want < cs.host.OOMScoreAdjMin {
		once("oom", "oom_score_adj cannot be lowered without CAP_SYS_RESOURCE, so containers run with this process's own",
			"wanted", want, "given", cs.host.OOMScoreAdjMin)
	}
	if oci.Unlabelled(&in) {
		once("selinux", "SELinux options are ignored: this kernel has no SELinux, or no policy of it")
	}
	if missing := oci.Ungranted(&in); len(missing) > 0 {
		once("caps "+strings.Join(missing, ","), "capabilities are left out that this process does not have itself", "capabilities", missing)
	}
}

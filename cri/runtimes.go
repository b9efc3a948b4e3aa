package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/keeper"
)

// runtimes are the handlers, and what is done differently for containers that are not libcontainer's. Such a container is made,
// entered, signalled, changed and deleted by its runtime; its keeper, its logs and its cgroup are as any other's.
type runtimes struct {
	handlers *handler.Set
	external handler.Caller
	hybrid   bool // cgroup v1 with controllers on a v2 side
	systemd  bool // cgroups are units of systemd
}

func openRuntimes(c Config, l layout, helper *os.File, h *cgroups.Hierarchy) (runtimes, error) {
	set, err := handler.Open(handler.Config{
		File: c.HandlersFile, StateDir: l.runtimes(), Wasm: filepath.Join(filepath.Dir(c.Helper), "berth-wasm"), LookPath: exec.LookPath,
	})
	if err != nil {
		return runtimes{}, err
	}
	r := runtimes{handlers: set, hybrid: h.Mode() == cgroups.Hybrid, systemd: c.CgroupDriver == cgroups.DriverSystemd}
	// Of the sealed copy: the binary may be replaced by another version.
	r.external.Veil = "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(helper.Fd()))
	return r, nil
}

// runtimeOf is what a sandbox of a handler is run by, nil when it is built in.
func (r *runtimes) runtimeOf(ctx context.Context, name string, cfg *runtimeapi.PodSandboxConfig) (*handler.Handler, error) {
	h, err := r.handlers.Get(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if h.Kind == handler.BuiltIn {
		return nil, nil
	}
	if h.OCI != nil {
		users := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
		if users.GetMode() == runtimeapi.NamespaceMode_POD && users != nil && !r.handlers.Features(ctx, r.external, h.OCI).UserNamespaces {
			return nil, invalidf("runtime handler %q does not support user namespaces", name)
		}
		o := *h.OCI
		o.Systemd = r.systemd
		o.CgroupV1 = r.hybrid && r.handlers.NeedsCgroupV1(ctx, h.OCI)
		h.OCI = &o
	}
	return &h, nil
}

// runtimeHandlers tells clients which handlers there are.
func (m *machine) runtimeHandlers(ctx context.Context) []*runtimeapi.RuntimeHandler {
	var out []*runtimeapi.RuntimeHandler
	for _, h := range m.handlers.All() {
		f := m.features()
		if h.OCI != nil {
			can := m.handlers.Features(ctx, m.external, h.OCI)
			f.RecursiveReadOnlyMounts = f.RecursiveReadOnlyMounts && can.RecursiveReadOnly
			f.UserNamespaces = f.UserNamespaces && can.UserNamespaces
		}
		out = append(out, &runtimeapi.RuntimeHandler{Name: h.Name, Features: f})
	}
	return out
}

// external is the runtime of a sandbox's containers, nil when that is libcontainer.
func (sb *sandbox) external() *handler.OCI {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	if sb.rec.Runtime == nil {
		return nil
	}
	return sb.rec.Runtime.OCI
}

// interpreter is the binary that a sandbox's containers are run by, "" when they are programs themselves.
func (sb *sandbox) interpreter() string {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	if sb.rec.Runtime == nil {
		return ""
	}
	return sb.rec.Runtime.Wasm
}

// interpreterPath is where a container finds its interpreter. /dev is a file system of the container's own, so nothing is
// needed for it in the image, and nothing is left there.
const interpreterPath = "/dev/.berth-wasm"

// interpreted is the command line of a module.
func interpreted(args []string, memory int64) []string {
	out := []string{interpreterPath}
	if memory > 0 {
		out = append(out, "-memory", strconv.FormatInt(memory, 10))
	}
	return append(append(out, "--"), args...)
}

// adapt makes the specification one for the sandbox's runtime.
func (c *container) adapt(spec *specs.Spec) {
	if c.sandbox.external() != nil {
		// Older ones refuse a specification of a later version before they look at what it says, and skip fields they do not know.
		spec.Version = "1.0.2"
		// A runtime that knows sandboxes would look for the one it has not made. To it, each container is on its own.
		delete(spec.Annotations, "io.kubernetes.cri.container-type")
		delete(spec.Annotations, "io.kubernetes.cri.sandbox-id")
	}
	if bin := c.sandbox.interpreter(); bin != "" {
		spec.Process.Args = interpreted(spec.Process.Args, c.cfg.GetLinux().GetResources().GetMemoryLimitInBytes())
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: interpreterPath, Type: "bind", Source: bin, Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev"},
		})
	}
}

// execBaseOf is what an exec takes over from its container. External runtimes keep the filter themselves.
func (c *container) execBaseOf(spec *specs.Spec) execBase {
	return execBase{process: spec.Process, filtered: spec.Linux.Seccomp != nil && c.sandbox.external() == nil}
}

// runtimeFile says by which runtime a container was made, for when there is no record of it any more.
func (l layout) runtimeFile(id string) string { return filepath.Join(l.container(id), "runtime.json") }

// runtimeRun is where the keeper and a runtime leave things for each other for a moment.
func (l layout) runtimeRun(id string) string { return filepath.Join(l.container(id), "run") }

func (cs *containers) keepRuntime(c *container) error {
	o := c.sandbox.external()
	if o == nil {
		return nil
	}
	b, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode runtime: %w", err)
	}
	return os.WriteFile(cs.paths.runtimeFile(c.id), b, 0o600)
}

// forgetRuntime is the last that is done about a container's runtime: what could not be deleted before is tried again, and goes
// anyway when the runtime is not installed any more.
func (cs *containers) forgetRuntime(ctx context.Context, c *container) error {
	o := c.sandbox.external()
	if o == nil {
		return nil
	}
	if handler.Has(o, c.id) {
		err := cs.external.Delete(ctx, o, c.id)
		if errors.Is(err, fs.ErrNotExist) {
			err = os.RemoveAll(filepath.Join(o.Root, c.id))
		}
		if err != nil {
			return err
		}
	}
	return removeRuntimeFiles(cs.paths, c.id)
}

func removeRuntimeFiles(l layout, id string) error {
	if err := os.RemoveAll(l.runtimeRun(id)); err != nil {
		return err
	}
	return remove(l.runtimeFile(id))
}

// hiddenCgroups is what the helper hides from runtimes that need cgroup v1.
const hiddenCgroups = "/sys/fs/cgroup/unified/"

// prepareRuntime makes what a runtime needs to start a container.
func (cs *containers) prepareRuntime(c *container) error {
	o := c.sandbox.external()
	if o == nil {
		return nil
	}
	if err := o.MakeRoot(); err != nil {
		return err
	}
	if !o.CgroupV1 {
		return nil
	}
	// In all hierarchies: the runtime does not see the v2 side, and puts nobody there.
	return cs.cgroups.Create(c.record().Cgroup, nil)
}

// keeperRuntime is what the keeper starts a container's processes with, nil when that is libcontainer.
func (cs *containers) keeperRuntime(c *container) *keeper.Runtime {
	o := c.sandbox.external()
	if o == nil {
		return nil
	}
	r := &keeper.Runtime{Command: o.Command(), CgroupV1: o.CgroupV1}
	if o.CgroupV1 {
		for _, f := range cs.cgroups.ProcsFiles(c.record().Cgroup) {
			// Not into those it does see: what it does to their processes, it would do to itself.
			if strings.HasPrefix(f, hiddenCgroups) {
				r.CgroupProcs = append(r.CgroupProcs, f)
			}
		}
	}
	return r
}

// signalExternal has the container's runtime send the signal: in a runtime with a kernel of its own, the process that the keeper
// knows is not the container's. It says whether that worked.
func (cs *containers) signalExternal(ctx context.Context, c *container, sig unix.Signal) bool {
	o := c.sandbox.external()
	if o == nil {
		return false
	}
	if err := cs.external.Kill(ctx, o, c.id, sig); err != nil {
		// It may have ended just now; the keeper knows.
		cs.log.Debug("runtime does not send a signal", append(c.logAttrs(), "signal", sig, "error", err)...)
		return false
	}
	return true
}

// limit changes the limits of a container that runs.
func (cs *containers) limit(ctx context.Context, c *container, r *specs.LinuxResources) error {
	if o := c.sandbox.external(); o != nil {
		return cs.external.Update(ctx, o, c.id, r)
	}
	return cs.cgroups.Update(c.record().Cgroup, r)
}

// deleteExternal has the container's runtime forget a container that has ended. One that was never started, it does not know.
func (cs *containers) deleteExternal(ctx context.Context, c *container) error {
	o := c.sandbox.external()
	if o == nil || c.record().State == containerCreated || !handler.Has(o, c.id) {
		return nil
	}
	return cs.external.Delete(ctx, o, c.id)
}

// deleteOrphan is deleteExternal for a container without a record.
func (m *machine) deleteOrphan(ctx context.Context, id string) error {
	b, err := os.ReadFile(m.paths.runtimeFile(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	o := &handler.OCI{}
	if err := json.Unmarshal(b, o); err == nil && o.Path != "" {
		if err := m.external.Delete(ctx, o, id); err != nil {
			return err
		}
	}
	return removeRuntimeFiles(m.paths, id)
}

package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// interpreterPath is where a container finds its interpreter. /dev is a file system of the container's own, so nothing
// is needed for it in the image, and nothing is left there.
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
func (c *Container) adapt(spec *specs.Spec) {
	if c.Sandbox.External() != nil {
		// Older ones refuse a specification of a later version before they look at what it says, and skip fields they
		// do not know.
		spec.Version = "1.0.2"
		// A runtime that knows sandboxes would look for the one it has not made. To it, each container is on its own.
		delete(spec.Annotations, "io.kubernetes.cri.container-type")
		delete(spec.Annotations, "io.kubernetes.cri.sandbox-id")
	}
	if bin := c.Sandbox.Interpreter(); bin != "" {
		spec.Process.Args = interpreted(spec.Process.Args, c.Config.GetLinux().GetResources().GetMemoryLimitInBytes())
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: interpreterPath, Type: "bind", Source: bin, Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev"},
		})
	}
}

// external is what is done for containers of another runtime than libcontainer, and not for others.
type external struct{ host *host.Host }

func (x *external) keepRuntime(c *Container) error {
	o := c.Sandbox.External()
	if o == nil {
		return nil
	}
	b, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode runtime: %w", err)
	}
	return os.WriteFile(x.host.Paths.Container(c.ID).RuntimeFile(), b, 0o600)
}

// forgetRuntime is the last that is done about a container's runtime: what could not be deleted before is tried again,
// and goes anyway when the runtime is not installed any more.
func (x *external) forgetRuntime(ctx context.Context, c *Container) error {
	o := c.Sandbox.External()
	if o == nil {
		return nil
	}
	if handler.Has(o, c.ID) {
		err := x.host.Runtimes.External.Delete(ctx, o, c.ID)
		// runc says in its log only that it could not remove a group, which it then keeps the state of.
		if errors.Is(err, fs.ErrNotExist) || err == nil && handler.Has(o, c.ID) {
			err = removeState(x.host.Mounts.Unmount, filepath.Join(o.Root, c.ID))
		}
		if err != nil {
			return err
		}
	}
	return host.RemoveRuntimeFiles(x.host.Paths, c.ID)
}

// removeState removes what a runtime keeps of a container. runc mounts its own program there for each command that it
// starts, to be safe from the container, and leaves the mount when it is killed before it has taken it away again.
func removeState(unmount func(path string) error, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, unmount(filepath.Join(dir, e.Name())))
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// hiddenCgroups is what the helper hides from runtimes that need cgroup v1.
const hiddenCgroups = "/sys/fs/cgroup/unified/"

// prepareRuntime makes what a runtime needs to start a container.
func (x *external) prepareRuntime(c *Container) error {
	o := c.Sandbox.External()
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
	return x.host.Cgroups.Create(c.Record().Cgroup, nil)
}

// keeperRuntime is what the keeper starts a container's processes with, nil when that is libcontainer.
func (x *external) keeperRuntime(c *Container) *keeper.Runtime {
	o := c.Sandbox.External()
	if o == nil {
		return nil
	}
	r := &keeper.Runtime{Command: o.Command(), CgroupV1: o.CgroupV1}
	if o.CgroupV1 {
		for _, f := range x.host.Cgroups.ProcsFiles(c.Record().Cgroup) {
			// Not into those it does see: what it does to their processes, it would do to itself.
			if strings.HasPrefix(f, hiddenCgroups) {
				r.CgroupProcs = append(r.CgroupProcs, f)
			}
		}
	}
	return r
}

// signalExternal has the container's runtime send the signal: in a runtime with a kernel of its own, the process that
// the keeper knows is not the container's. It says whether that worked.
func (x *external) signalExternal(ctx context.Context, c *Container, sig unix.Signal) bool {
	o := c.Sandbox.External()
	if o == nil {
		return false
	}
	if err := x.host.Runtimes.External.Kill(ctx, o, c.ID, sig); err != nil {
		// It may have ended just now; the keeper knows.
		x.host.Log.Debug("runtime does not send a signal", append(c.LogAttrs(), "signal", sig, "error", err)...)
		return false
	}
	return true
}

// limit changes the limits of a container that runs.
func (x *external) limit(ctx context.Context, c *Container, r *specs.LinuxResources) error {
	if o := c.Sandbox.External(); o != nil {
		return x.host.Runtimes.External.Update(ctx, o, c.ID, r)
	}
	return x.host.Cgroups.Update(c.Record().Cgroup, r)
}

// deleteExternal has the container's runtime forget a container that has ended. One that was never started, it does not
// know.
func (x *external) deleteExternal(ctx context.Context, c *Container) error {
	o := c.Sandbox.External()
	if o == nil || c.Record().State == Created || !handler.Has(o, c.ID) {
		return nil
	}
	return x.host.Runtimes.External.Delete(ctx, o, c.ID)
}

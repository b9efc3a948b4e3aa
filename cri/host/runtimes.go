package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/systemd"
	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/plain"
)

// Runtimes are the handlers, and what is done differently for containers that are not libcontainer's. Such a container
// is made, entered, signalled, changed and deleted by its runtime; its keeper, its logs and its cgroup are as any
// other's.
type Runtimes struct {
	Handlers *handler.Set
	External handler.Caller
	Plain    *plain.Machine // where ordinary containers are started without libcontainer, else nil
	hybrid   bool           // cgroup v1 with controllers on a v2 side
	systemd  bool           // cgroups are units of systemd
}

// OpenRuntimes reads which handlers there are. binary is the path of the helper, and helper the sealed copy of it; auto
// says that libcontainer need not start all containers of the handler that is built in.
func OpenRuntimes(
	handlersFile, binary string, m *Host, helper *os.File, h *cgroups.Hierarchy, auto bool,
) (Runtimes, error) {
	set, err := handler.Open(handler.Config{
		File: handlersFile, StateDir: m.Paths.Runtimes(), Wasm: filepath.Join(filepath.Dir(binary), "berth-wasm"), LookPath: exec.LookPath,
	})
	if err != nil {
		return Runtimes{}, err
	}
	r := Runtimes{Handlers: set, hybrid: h.Mode() == cgroups.Hybrid, systemd: m.Host.Systemd}
	if auto {
		r.Plain = plainOn(m, helper, h)
	}
	// Of the sealed copy: the binary may be replaced by another version.
	r.External.Veil = "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(helper.Fd()))
	return r, nil
}

// plainOn is the machine as ordinary containers have it, nil where none is ordinary: scopes of systemd are on v2 only.
func plainOn(m *Host, helper *os.File, h *cgroups.Hierarchy) *plain.Machine {
	machine := plain.MachineOf(h)
	if !m.Host.Systemd {
		return &machine
	}
	units, is := m.Cgroups.(tree)
	if !is || h.Mode() != cgroups.Unified {
		return nil
	}
	driver, is := units.maker.(*systemd.Driver)
	if !is {
		return nil
	}
	machine = machine.WithScopes(plain.Scopes{
		Systemd: driver, Hold: func() (plain.Holder, error) { return keeper.NewHolder(helper) },
	})
	return &machine
}

// RuntimeOf is what a sandbox of a handler is run by, nil when it is built in.
func (r *Runtimes) RuntimeOf(ctx context.Context, name string, cfg *runtimeapi.PodSandboxConfig) (*handler.Handler, error) {
	h, err := r.Handlers.Get(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	if h.Kind == handler.BuiltIn {
		return nil, nil
	}
	if h.OCI != nil {
		users := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
		if users.GetMode() == runtimeapi.NamespaceMode_POD && users != nil && !r.Handlers.Features(ctx, r.External, h.OCI).UserNamespaces {
			return nil, fault.Invalidf("runtime handler %q does not support user namespaces", name)
		}
		o := *h.OCI
		o.Systemd = r.systemd
		o.CgroupV1 = r.hybrid && r.Handlers.NeedsCgroupV1(ctx, h.OCI)
		h.OCI = &o
	}
	return &h, nil
}

// RuntimeHandlers tells clients which handlers there are.
func (m *Host) RuntimeHandlers(ctx context.Context) []*runtimeapi.RuntimeHandler {
	var out []*runtimeapi.RuntimeHandler
	for _, h := range m.Runtimes.Handlers.All() {
		f := m.Features()
		if h.OCI != nil {
			can := m.Runtimes.Handlers.Features(ctx, m.Runtimes.External, h.OCI)
			f.RecursiveReadOnlyMounts = f.RecursiveReadOnlyMounts && can.RecursiveReadOnly
			f.UserNamespaces = f.UserNamespaces && can.UserNamespaces
		}
		out = append(out, &runtimeapi.RuntimeHandler{Name: h.Name, Features: f})
	}
	return out
}

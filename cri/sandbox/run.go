package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/background"
	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/step"
	"github.com/berth-node/berth/internal/atomicfile"
)

// Run makes a sandbox. What fails leaves nothing behind, or a sandbox that is not ready, where even undoing failed.
func (p *Sandboxes) Run(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handlerName string) (string, error) {
	if err := checkSandbox(cfg); err != nil {
		return "", err
	}
	if err := p.Quarantine.Replaces(cfg); err != nil {
		return "", err
	}
	runtime, err := p.host.Runtimes.RuntimeOf(ctx, handlerName, cfg)
	if err != nil {
		return "", err
	}
	defer p.host.Plugins.Hold()()
	sb, err := p.begin(cfg, handlerName, runtime)
	if err != nil {
		return "", err
	}
	if err := sb.op.Lock(ctx); err != nil {
		return "", err
	}
	defer sb.op.Unlock()
	undone, err := p.host.Steps.Run(ctx, sb, "run sandbox", p.Builder.Plan(sb))
	if err == nil {
		p.host.Steps.Point("run sandbox", "record", "ready", "before")
		err = p.Table.Update(sb, func(r *Record) {
			r.State = Ready
			r.Pid = sb.keeper.Pid()
		})
		if err != nil {
			p.host.Plugins.PodRemoved(context.WithoutCancel(ctx), sb.ForPlugins)
			undoErr := p.host.Steps.Undo(context.WithoutCancel(ctx), sb, "run sandbox", p.Builder.Plan(sb))
			undone = undoErr == nil
		}
	}
	if err != nil {
		return "", p.giveUp(sb, undone, err)
	}
	p.host.Steps.Point("run sandbox", "record", "ready", "after")
	p.Watcher.Watch(sb)
	p.events.Publish(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, sb.ID, sb.Statuses)
	p.events.Publish(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, sb.ID, sb.Statuses)
	return sb.ID, nil
}

// begin reserves the name and writes the record of a sandbox to be.
func (p *Sandboxes) begin(cfg *runtimeapi.PodSandboxConfig, name string, runtime *handler.Handler) (*Sandbox, error) {
	raw, err := ledger.Encode(cfg)
	if err != nil {
		return nil, err
	}
	id := ledger.NewID()
	rec := Record{
		ID: id, Name: sandboxName(cfg.GetMetadata()), State: Creating, BootID: p.host.BootID, CreatedAt: time.Now().UnixNano(),
		Handler: name, Runtime: runtime, Config: raw, Cgroup: p.host.CgroupOf(cfg.GetLinux().GetCgroupParent(), id),
	}
	if err := p.Table.names.Reserve(rec.Name, id); err != nil {
		return nil, fmt.Errorf("reserve sandbox name: %w", err)
	}
	if err := p.Table.records.Put(id, rec); err != nil {
		p.Table.names.Release(id)
		return nil, errors.Join(err, p.Table.records.Drop(id, p.Table.records.Own(rec)))
	}
	sb := New(rec, cfg)
	p.Table.ByID.Put(id, sb)
	return sb, nil
}

// giveUp ends a sandbox that could not be run. Where something could not be undone it stays, not ready, for stop and
// remove.
func (p *Sandboxes) giveUp(sb *Sandbox, undone bool, cause error) error {
	var err error
	if undone {
		err = p.Table.Drop(sb)
	} else {
		p.Table.Note(sb, func(r *Record) { r.State = NotReady })
	}
	if err != nil {
		return fmt.Errorf("run sandbox: %w (and then: %w)", cause, err)
	}
	return fmt.Errorf("run sandbox: %w", cause)
}

// Builder makes what sandboxes are made of.
type Builder struct {
	host   *host.Host
	tasks  *background.Tasks
	table  *Table
	joiner *Joiner
}

// Plan is what a sandbox is made of. All but the first stage is taken down when it is stopped, the first when it is
// removed. The network is given back with the namespace and not with its own stage, where it would be beside the
// keeper: an address is another pod's from then on, so nobody may be left who has it.
func (b *Builder) Plan(sb *Sandbox) step.Plan {
	all := step.Plan{
		{{Name: "directory", Do: b.makeDir(sb), Undo: b.removeDir(sb)}},
		{{Name: "namespace", Do: b.pinNamespaces(sb), Undo: b.unpinNamespaces(sb)}, {Name: "cgroup", Do: b.makeCgroup(sb), Undo: b.removeCgroup(sb)}},
		{{Name: "keeper", Do: b.startKeeper(sb), Undo: b.stopKeeper(sb)}, {Name: "network", Do: b.setupNetwork(sb), Undo: nil}, {Name: "files", Do: b.writeFiles(sb), Undo: b.removeShm(sb)}},
	}
	if b.host.Plugins.Active() {
		all = append(all, []step.Step{{Name: "plugins", Do: b.askPlugins(sb), Undo: nil}})
	}
	return all
}

func (b *Builder) askPlugins(sb *Sandbox) step.Act {
	return func(ctx context.Context) error { return b.host.Plugins.RunPod(ctx, sb.beginning) }
}

func (b *Builder) makeDir(sb *Sandbox) step.Act {
	return func(context.Context) error {
		if err := os.MkdirAll(b.host.Paths.Sandbox(sb.ID).Keeper(), 0o700); err != nil {
			return err
		}
		if err := os.MkdirAll(b.host.Paths.Sandbox(sb.ID).Records(), 0o700); err != nil {
			return err
		}
		// Should the records be lost, this still says which cgroup is to be removed.
		err := atomicfile.Over(b.host.Paths.Sandbox(sb.ID).Cgroup(), []byte(sb.Record().Cgroup), 0o600)
		return errors.Join(err, b.table.records.Keep(sb.ID, sb.Record()))
	}
}

func (b *Builder) removeDir(sb *Sandbox) step.Act {
	return func(context.Context) error { return host.RemoveSandboxDir(b.host.Paths, sb.ID) }
}

func (b *Builder) makeCgroup(sb *Sandbox) step.Act {
	return func(context.Context) error {
		if err := b.host.Cgroups.Create(sb.Record().Cgroup, nil); err != nil {
			return err
		}
		// Not before: no group can be made while an attachment waits.
		b.tasks.Start(func(context.Context) { b.host.Cgroups.Warm() })
		return nil
	}
}

func (b *Builder) removeCgroup(sb *Sandbox) step.Act {
	return func(ctx context.Context) error { return b.host.Cgroups.Remove(ctx, sb.Record().Cgroup) }
}

func (b *Builder) setupNetwork(sb *Sandbox) step.Act {
	if sb.HostNetwork() {
		return nil
	}
	return func(ctx context.Context) error {
		res, err := b.host.Net.Setup(ctx, sb.network())
		if err != nil {
			return err
		}
		sb.mu.Lock()
		defer sb.mu.Unlock()
		sb.rec.IPs = res.IPs
		return nil
	}
}

// keeperOOMScore makes the keeper one of the last to be killed: with it all its containers would go.
const keeperOOMScore = -998

// keeperShares is the least share of the CPU there is, as the process of a sandbox has it with other runtimes: what the
// pod may use is its containers'.
const keeperShares = 2

func (b *Builder) startKeeper(sb *Sandbox) step.Act {
	return func(ctx context.Context) error {
		ns := sb.NamespaceOptions()
		rec := sb.Record()
		k, err := b.host.Keepers.Start(ctx, keeper.Config{
			ID: sb.ID, Dir: b.host.Paths.Sandbox(sb.ID).Keeper(), NetNS: rec.NetNS, UserNS: sb.UserNS(b.host.Paths), RootUID: sb.IDs.Root().UID,
			IPC:         ns.GetIpc() != runtimeapi.NamespaceMode_NODE,
			UTS:         !sb.HostNetwork(),
			PID:         ns.GetPid() == runtimeapi.NamespaceMode_POD,
			Hostname:    ownHostname(sb),
			Sysctls:     sysctlsOf(sb.Config),
			LaunchProcs: b.host.Cgroups.ProcsFiles(b.host.LaunchCgroup()),
			OOMScoreAdj: b.host.OOMScore(keeperOOMScore),
			InitProcs:   b.initProcs(sb),
			NoSpare:     sb.External() != nil || b.ordinary(sb),
		})
		if err != nil {
			return err
		}
		sb.SetKeeper(k)
		b.joiner.Join(sb, k)
		return nil
	}
}

// ordinary says whether the containers of a sandbox are likely to be started without a launcher of libcontainer's.
func (b *Builder) ordinary(sb *Sandbox) bool {
	return b.host.Runtimes.Plain != nil && sb.IDs == nil &&
		sb.NamespaceOptions().GetPid() == runtimeapi.NamespaceMode_CONTAINER &&
		!sb.Config.GetLinux().GetSecurityContext().GetPrivileged()
}

// initProcs are the files by which process 1 of a shared PID namespace joins the sandbox's cgroup by itself. A scope of
// systemd is made with the first process in it, by join.
func (b *Builder) initProcs(sb *Sandbox) []string {
	group := sb.Record().Cgroup
	if sb.NamespaceOptions().GetPid() != runtimeapi.NamespaceMode_POD || !b.host.Cgroups.Exists(group) {
		return nil
	}
	return b.host.Cgroups.ProcsFiles(group)
}

// Joiner puts processes of sandboxes into their cgroups, and lets them die there.
type Joiner struct {
	host  *host.Host
	tasks *background.Tasks
}

// Join puts the keeper into the sandbox's cgroup. That may take longer than all of the rest, and nothing depends on it,
// so nobody waits for it but who stops the keeper.
func (j *Joiner) Join(sb *Sandbox, k host.Keeper) {
	joined := make(chan struct{})
	sb.mu.Lock()
	sb.Joined = joined
	sb.mu.Unlock()
	attach := func(context.Context) {
		defer close(joined)
		pids := []int{k.Pid()}
		if pid1 := k.Pid1(); pid1 > 0 {
			pids = append(pids, pid1)
		}
		for _, pid := range pids {
			if err := j.host.Cgroups.Attach(sb.Record().Cgroup, pid); err != nil {
				j.host.Log.Warn("process of a sandbox runs outside its pod's cgroup", "sandbox", sb.ID, "pid", pid, "error", err)
			}
		}
		shares := uint64(keeperShares)
		err := j.host.Cgroups.Update(sb.Record().Cgroup, &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			j.host.Log.Warn("keeper has a larger share of its pod's CPU than it should have", "sandbox", sb.ID, "error", err)
		}
	}
	if !j.tasks.Start(attach) {
		close(joined) // the next server does it
	}
}

func (b *Builder) stopKeeper(sb *Sandbox) step.Act {
	return func(ctx context.Context) error {
		sb.mu.RLock()
		joined := sb.Joined
		sb.mu.RUnlock()
		if joined != nil {
			<-joined // else the number of a keeper that is gone could be attached
		}
		silent := sb.Silenced()
		if k := sb.takeKeeper(); k != nil && !silent {
			if err := k.Stop(ctx); err == nil {
				sb.mu.Lock()
				defer sb.mu.Unlock()
				sb.quiet = k.Quiet()
				return nil
			}
		}
		b.joiner.Thaw(sb)
		return b.host.Keepers.Kill(b.host.Paths.Sandbox(sb.ID).Keeper())
	}
}

// Thaw lets the processes of a pod die that somebody has frozen, with its group or with the one above, which is the
// pod's.
func (j *Joiner) Thaw(sb *Sandbox) {
	group := sb.Record().Cgroup
	if parent := path.Dir(group); group != "" && parent != j.host.DefaultParent() {
		j.host.Cgroups.Thaw(parent)
	}
	j.host.Cgroups.Thaw(group)
}

// ownHostname is what a pod's own UTS namespace is told. One without leaves it with the host's name.
func ownHostname(sb *Sandbox) string {
	if sb.HostNetwork() {
		return ""
	}
	return sb.Config.GetHostname()
}

// hostnameOf is the name a pod has on the inside; one in the host's network has the host's.
func (b *Builder) hostnameOf(sb *Sandbox) string {
	if h := sb.Config.GetHostname(); h != "" && !sb.HostNetwork() {
		return h
	}
	return b.host.Host.Hostname
}

// UpdateResources notes what a pod as a whole has. It is shown to who asks for it, and to plugins.
func (p *Sandboxes) UpdateResources(ctx context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest) error {
	sb, err := p.Table.ByID.Get(r.GetPodSandboxId())
	if err != nil {
		return err
	}
	defer p.host.Plugins.Hold()()
	if err := sb.op.Lock(ctx); err != nil {
		return err
	}
	defer sb.op.Unlock()
	if _, err := sb.Live(); err != nil {
		return err
	}
	if err := p.host.Plugins.UpdatePod(ctx, sb.ForPlugins, r.GetOverhead(), r.GetResources()); err != nil {
		return err
	}
	overhead, err := ledger.Encode(r.GetOverhead())
	if err != nil {
		return err
	}
	resources, err := ledger.Encode(r.GetResources())
	if err != nil {
		return err
	}
	if err := p.Table.Update(sb, func(rec *Record) { rec.Overhead, rec.Resources = overhead, resources }); err != nil {
		return err
	}
	p.host.Plugins.PodUpdated(ctx, sb.ForPlugins)
	return nil
}

package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/keeper"
)

// run makes a sandbox. What fails leaves nothing behind, or a sandbox that is not ready, where even undoing failed.
func (p *pods) run(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handlerName string) (string, error) {
	if err := checkSandbox(cfg); err != nil {
		return "", err
	}
	if err := p.replaces(cfg); err != nil {
		return "", err
	}
	runtime, err := p.runtimeOf(ctx, handlerName, cfg)
	if err != nil {
		return "", err
	}
	defer p.hold()()
	sb, err := p.begin(cfg, handlerName, runtime)
	if err != nil {
		return "", err
	}
	if err := sb.op.lock(ctx); err != nil {
		return "", err
	}
	defer sb.op.unlock()
	undone, err := p.runner.run(ctx, sb, "run sandbox", p.plan(sb))
	if err == nil {
		p.point("run sandbox", "record", "ready", "before")
		err = p.update(sb, func(r *sandboxRecord) {
			r.State = sandboxReady
			r.Pid = sb.keeper.Pid()
		})
		if err != nil {
			p.tellRemoved(context.WithoutCancel(ctx), sb)
			undoErr := p.undo(context.WithoutCancel(ctx), sb, "run sandbox", p.plan(sb))
			undone = undoErr == nil
		}
	}
	if err != nil {
		return "", p.giveUp(sb, undone, err)
	}
	p.point("run sandbox", "record", "ready", "after")
	p.watch(sb)
	p.events.sandbox(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, sb)
	p.events.sandbox(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, sb)
	return sb.id, nil
}

// begin reserves the name and writes the record of a sandbox to be.
func (p *pods) begin(cfg *runtimeapi.PodSandboxConfig, name string, runtime *handler.Handler) (*sandbox, error) {
	raw, err := encode(cfg)
	if err != nil {
		return nil, err
	}
	id := newID()
	rec := sandboxRecord{
		ID: id, Name: sandboxName(cfg.GetMetadata()), State: sandboxCreating, BootID: p.bootID, CreatedAt: time.Now().UnixNano(),
		Handler: name, Runtime: runtime, Config: raw, Cgroup: p.cgroupOf(cfg.GetLinux().GetCgroupParent(), id),
	}
	if err := p.names.reserve(rec.Name, id); err != nil {
		return nil, fmt.Errorf("reserve sandbox name: %w", err)
	}
	if err := p.records.put(id, rec); err != nil {
		p.names.release(id)
		return nil, errors.Join(err, p.records.drop(id, p.records.own(rec)))
	}
	sb := newSandbox(rec, cfg)
	p.byID.put(id, sb)
	return sb, nil
}

// giveUp ends a sandbox that could not be run. Where something could not be undone it stays, not ready, for stop and remove.
func (p *pods) giveUp(sb *sandbox, undone bool, cause error) error {
	var err error
	if undone {
		err = p.drop(sb)
	} else {
		p.note(sb, func(r *sandboxRecord) { r.State = sandboxNotReady })
	}
	if err != nil {
		return fmt.Errorf("run sandbox: %w (and then: %w)", cause, err)
	}
	return fmt.Errorf("run sandbox: %w", cause)
}

// plan is what a sandbox is made of. All but the first stage is taken down when it is stopped, the first when it is removed.
// The network is given back with the namespace and not with its own stage, where it would be beside the keeper: an address is
// another pod's from then on, so nobody may be left who has it.
func (p *pods) plan(sb *sandbox) plan {
	all := plan{
		{{"directory", p.makeDir(sb), p.removeDir(sb)}},
		{{"namespace", p.pinNamespaces(sb), p.unpinNamespaces(sb)}, {"cgroup", p.makeCgroup(sb), p.removeCgroup(sb)}},
		{{"keeper", p.startKeeper(sb), p.stopKeeper(sb)}, {"network", p.setupNetwork(sb), nil}, {"files", p.writeFiles(sb), p.removeShm(sb)}},
	}
	if p.plugins.Load().Active() {
		all = append(all, []step{{"plugins", p.askPlugins(sb), nil}})
	}
	return all
}

func (p *pods) askPlugins(sb *sandbox) act {
	return func(ctx context.Context) error { return p.askToRun(ctx, sb) }
}

type act = func(context.Context) error

func (p *pods) makeDir(sb *sandbox) act {
	return func(context.Context) error {
		if err := os.MkdirAll(p.paths.keeper(sb.id), 0o700); err != nil {
			return err
		}
		if err := os.MkdirAll(p.paths.records(sb.id), 0o700); err != nil {
			return err
		}
		// Should the records be lost, this still says which cgroup is to be removed.
		err := os.WriteFile(filepath.Join(p.paths.sandbox(sb.id), "cgroup"), []byte(sb.record().Cgroup), 0o600)
		return errors.Join(err, p.records.keep(sb.id, sb.record()))
	}
}

func (p *pods) removeDir(sb *sandbox) act {
	return func(context.Context) error { return removeSandboxDir(p.paths, sb.id) }
}

func (p *pods) makeCgroup(sb *sandbox) act {
	return func(context.Context) error {
		if err := p.cgroups.Create(sb.record().Cgroup, nil); err != nil {
			return err
		}
		// Not before: no group can be made while an attachment waits.
		p.life.start(func(context.Context) { p.cgroups.Warm() })
		return nil
	}
}

func (p *pods) removeCgroup(sb *sandbox) act {
	return func(ctx context.Context) error { return p.cgroups.Remove(ctx, sb.record().Cgroup) }
}

func (p *pods) setupNetwork(sb *sandbox) act {
	if sb.hostNetwork() {
		return nil
	}
	return func(ctx context.Context) error {
		res, err := p.net.Setup(ctx, sb.network())
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

// keeperShares is the least share of the CPU there is, as the process of a sandbox has it with other runtimes: what the pod may use is
// its containers'.
const keeperShares = 2

func (p *pods) startKeeper(sb *sandbox) act {
	return func(ctx context.Context) error {
		ns := sb.namespaceOptions()
		rec := sb.record()
		k, err := p.keepers.Start(ctx, keeper.Config{
			ID: sb.id, Dir: p.paths.keeper(sb.id), NetNS: rec.NetNS, UserNS: p.userNS(sb), RootUID: sb.ids.Root().UID,
			IPC:         ns.GetIpc() != runtimeapi.NamespaceMode_NODE,
			UTS:         !sb.hostNetwork(),
			PID:         ns.GetPid() == runtimeapi.NamespaceMode_POD,
			Hostname:    ownHostname(sb),
			Sysctls:     sysctlsOf(sb.cfg),
			LaunchProcs: p.cgroups.ProcsFiles(p.launchCgroup()),
			OOMScoreAdj: p.oomScore(keeperOOMScore),
			InitProcs:   p.initProcs(sb),
			NoSpare:     sb.external() != nil,
		})
		if err != nil {
			return err
		}
		sb.setKeeper(k)
		p.join(sb, k)
		return nil
	}
}

// initProcs are the files by which process 1 of a shared PID namespace joins the sandbox's cgroup by itself. A scope of systemd
// is made with the first process in it, by join.
func (p *pods) initProcs(sb *sandbox) []string {
	group := sb.record().Cgroup
	if sb.namespaceOptions().GetPid() != runtimeapi.NamespaceMode_POD || !p.cgroups.Exists(group) {
		return nil
	}
	return p.cgroups.ProcsFiles(group)
}

// join puts the keeper into the sandbox's cgroup. That may take longer than all of the rest, and nothing depends on it, so
// nobody waits for it but who stops the keeper.
func (p *pods) join(sb *sandbox, k podKeeper) {
	joined := make(chan struct{})
	sb.mu.Lock()
	sb.joined = joined
	sb.mu.Unlock()
	attach := func(context.Context) {
		defer close(joined)
		pids := []int{k.Pid()}
		if pid1 := k.Pid1(); pid1 > 0 {
			pids = append(pids, pid1)
		}
		for _, pid := range pids {
			if err := p.cgroups.Attach(sb.record().Cgroup, pid); err != nil {
				p.log.Warn("process of a sandbox runs outside its pod's cgroup", "sandbox", sb.id, "pid", pid, "error", err)
			}
		}
		shares := uint64(keeperShares)
		err := p.cgroups.Update(sb.record().Cgroup, &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.log.Warn("keeper has a larger share of its pod's CPU than it should have", "sandbox", sb.id, "error", err)
		}
	}
	if !p.life.start(attach) {
		close(joined) // the next server does it
	}
}

func (p *pods) stopKeeper(sb *sandbox) act {
	return func(ctx context.Context) error {
		sb.mu.RLock()
		joined := sb.joined
		sb.mu.RUnlock()
		if joined != nil {
			<-joined // else the number of a keeper that is gone could be attached
		}
		silent := sb.silenced()
		if k := sb.takeKeeper(); k != nil && !silent {
			if err := k.Stop(ctx); err == nil {
				sb.mu.Lock()
				defer sb.mu.Unlock()
				sb.quiet = k.Quiet()
				return nil
			}
		}
		p.thaw(sb)
		return p.keepers.Kill(p.paths.keeper(sb.id))
	}
}

// thaw lets the processes of a pod die that somebody has frozen, with its group or with the one above, which is the pod's.
func (p *pods) thaw(sb *sandbox) {
	group := sb.record().Cgroup
	if parent := path.Dir(group); group != "" && parent != p.defaultParent() {
		p.cgroups.Thaw(parent)
	}
	p.cgroups.Thaw(group)
}

// ownHostname is what a pod's own UTS namespace is told. One without leaves it with the host's name.
func ownHostname(sb *sandbox) string {
	if sb.hostNetwork() {
		return ""
	}
	return sb.cfg.GetHostname()
}

// hostnameOf is the name a pod has on the inside; one in the host's network has the host's.
func (p *pods) hostnameOf(sb *sandbox) string {
	if h := sb.cfg.GetHostname(); h != "" && !sb.hostNetwork() {
		return h
	}
	return p.host.Hostname
}

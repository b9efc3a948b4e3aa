package container

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/oci"
)

// Updater changes the limits of containers.
type Updater struct {
	host     *host.Host
	table    *Table
	external *external
	told     *told
}

// UpdateResources changes the limits of a container, as far as plugins let it.
func (u *Updater) UpdateResources(ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest) error {
	c, err := u.table.ByID.Get(r.GetContainerId())
	if err != nil {
		return err
	}
	others, err := u.updateHeld(ctx, c, r.GetLinux())
	if err != nil {
		return fmt.Errorf("update container: %w", err)
	}
	u.ApplyUpdates(ctx, others)
	return nil
}

// updateHeld changes a container while no plugin comes. It returns what plugins want of others.
func (u *Updater) updateHeld(ctx context.Context, c *Container, want *runtimeapi.LinuxContainerResources) ([]*api.ContainerUpdate, error) {
	defer u.host.Plugins.Hold()()
	if err := c.op.Lock(ctx); err != nil {
		return nil, err
	}
	defer c.op.Unlock()
	if err := changeable(c); err != nil {
		return nil, err
	}
	change, err := u.host.Plugins.UpdateContainer(ctx, u.told.of(c), want)
	if err != nil {
		return nil, err
	}
	if err := u.changeResources(ctx, c, change.Resources, change.Beyond); err != nil {
		return nil, err
	}
	u.host.Plugins.Changed(ctx, u.told.of(c))
	return change.Others, nil
}

func changeable(c *Container) error {
	if s := c.Record().State; s != Running && s != Created {
		return fmt.Errorf("%w: container is in %s state", fault.ErrPrecondition, s.CRI())
	}
	return nil
}

// changeResources changes the limits of a container: in its cgroup when it runs, and in its specification. The caller
// holds op.
func (u *Updater) changeResources(ctx context.Context, c *Container, want *runtimeapi.LinuxContainerResources, beyond nri.Beyond) error {
	if err := changeable(c); err != nil {
		return err
	}
	rec := c.Record()
	was := &runtimeapi.LinuxContainerResources{}
	if err := ledger.Decode(rec.Resources, was); err != nil {
		return err
	}
	if adj := want.GetOomScoreAdj(); adj < -1000 || adj > 1000 {
		return fault.Invalidf("oom_score_adj %d is not from -1000 to 1000", adj)
	}
	merged := proto.CloneOf(was)
	mergeResources(merged, want)
	res := oci.Resources(merged, u.host.Host)
	beyond.Add(res)
	if rec.State == Running {
		if err := u.external.limit(ctx, c, res); err != nil {
			// The kernel takes one limit after the other, and may have some of them already.
			return errors.Join(err, u.external.limit(context.WithoutCancel(ctx), c, oci.Resources(explicit(was, want), u.host.Host)))
		}
	}
	var score *int
	if before, now := u.host.OOMScore(int(was.GetOomScoreAdj())), u.host.OOMScore(int(merged.GetOomScoreAdj())); before != now {
		score = &now
		if rec.State == Running {
			if err := u.rescore(rec.Cgroup, before, now); err != nil {
				return err
			}
		}
	}
	// Of one that runs it is what a verbose status and checkpoints show, and what is run in it begins with.
	err := rewriteSpec(u.host.Paths.Container(c.ID).Spec(), res, score)
	if err != nil && rec.State != Running {
		return err
	}
	if err != nil {
		u.host.Log.Warn("specification does not have the container's new limits", append(c.LogAttrs(), "error", err)...)
	} else if score != nil || rec.State != Running {
		c.mu.Lock()
		c.exec = execBase{} // read again when it is needed
		c.mu.Unlock()
	}
	raw, err := ledger.Encode(merged)
	if err != nil {
		return err
	}
	return u.table.update(c, func(r *Record) { r.Resources = raw })
}

// explicit is was, with what it leaves open and the change did not in words: no limit.
func explicit(was, change *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
	out := proto.CloneOf(was)
	for _, f := range []struct {
		to     *int64
		change int64
		open   int64
	}{
		{&out.CpuQuota, change.GetCpuQuota(), -1},
		{&out.CpuShares, change.GetCpuShares(), 1024},
		{&out.MemoryLimitInBytes, change.GetMemoryLimitInBytes(), -1},
	} {
		if *f.to == 0 && f.change != 0 {
			*f.to = f.open
		}
	}
	return out
}

// mergeResources takes over what r says; zero says nothing.
func mergeResources(into, r *runtimeapi.LinuxContainerResources) {
	set := func(dst *int64, v int64) {
		if v != 0 {
			*dst = v
		}
	}
	set(&into.CpuPeriod, r.GetCpuPeriod())
	set(&into.CpuQuota, r.GetCpuQuota())
	set(&into.CpuShares, r.GetCpuShares())
	set(&into.MemoryLimitInBytes, r.GetMemoryLimitInBytes())
	set(&into.MemorySwapLimitInBytes, r.GetMemorySwapLimitInBytes())
	set(&into.OomScoreAdj, r.GetOomScoreAdj())
	if v := r.GetCpusetCpus(); v != "" {
		into.CpusetCpus = v
	}
	if v := r.GetCpusetMems(); v != "" {
		into.CpusetMems = v
	}
	if v := r.GetHugepageLimits(); len(v) > 0 {
		into.HugepageLimits = v
	}
	if len(r.GetUnified()) > 0 {
		all := maps.Clone(into.GetUnified())
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, r.GetUnified())
		into.Unified = all
	}
}

// rewriteSpec puts new limits into the specification of a container that has not been started.
func rewriteSpec(path string, r *specs.LinuxResources, score *int) error {
	spec, err := host.ReadSpec(path)
	if err != nil {
		return err
	}
	// What the CRI does not know stays as it is.
	was := spec.Linux.Resources
	r.Devices, r.BlockIO = was.Devices, was.BlockIO
	if r.Pids == nil {
		r.Pids = was.Pids
	}
	if m := was.Memory; m != nil && m.Reservation != nil {
		if r.Memory == nil {
			r.Memory = &specs.LinuxMemory{}
		}
		if r.Memory.Reservation == nil {
			r.Memory.Reservation = m.Reservation
		}
	}
	spec.Linux.Resources = r
	if score != nil {
		spec.Process.OOMScoreAdj = score
	}
	return host.WriteSpec(path, spec)
}

// rescore gives the processes of a container another oom_score_adj. Those that have chosen one for themselves keep it.
// What is forked meanwhile has its parent's, so it is looked again until nobody has the old one.
func (u *Updater) rescore(group string, before, now int) error {
	for range 16 {
		changed := 0
		for _, file := range u.host.Cgroups.ProcsFiles(group) {
			b, err := os.ReadFile(file)
			if err != nil {
				continue // of a hierarchy that the container has no group in, or it has just ended
			}
			for pid := range strings.FieldsSeq(string(b)) {
				did, err := rescoreOne("/proc/"+pid, group, before, now)
				if err != nil {
					return fmt.Errorf("set oom_score_adj of process %s: %w", pid, err)
				}
				if did {
					changed++
				}
			}
		}
		if changed == 0 {
			return nil
		}
	}
	return nil // it forks faster than one can look; its first processes have it
}

// pluginGrace is how long an update that a plugin asks for waits for a container that is busy.
const pluginGrace = 2 * time.Second

// ApplyUpdates makes the changes that plugins ask for, each as far as it can, and returns those that failed.
func (u *Updater) ApplyUpdates(ctx context.Context, updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate) {
	for _, one := range updates {
		err := u.applyUpdate(ctx, one)
		if err != nil && !one.GetIgnoreFailure() {
			u.host.Log.Warn("update that an NRI plugin asks for is not done", "id", one.GetContainerId(), "error", err)
			failed = append(failed, one)
		}
	}
	return failed
}

func (u *Updater) applyUpdate(ctx context.Context, one *api.ContainerUpdate) error {
	c, ok := u.table.ByID.Exact(one.GetContainerId())
	if !ok {
		return fault.ErrNotFound
	}
	res, beyond, err := nri.ToCRI(one.GetLinux().GetResources())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pluginGrace)
	defer cancel()
	if err := c.op.Lock(ctx); err != nil {
		return err
	}
	defer c.op.Unlock()
	return u.changeResources(ctx, c, res, beyond)
}

package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/oci"
)

// updateResources changes the limits of a container, as far as plugins let it.
func (cs *containers) updateResources(ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest) error {
	c, err := cs.byID.get(r.GetContainerId())
	if err != nil {
		return err
	}
	others, err := cs.updateHeld(ctx, c, r.GetLinux())
	if err != nil {
		return fmt.Errorf("update container: %w", err)
	}
	cs.applyUpdates(ctx, others)
	return nil
}

// updateHeld changes a container while no plugin comes. It returns what plugins want of others.
func (cs *containers) updateHeld(ctx context.Context, c *container, want *runtimeapi.LinuxContainerResources) ([]*api.ContainerUpdate, error) {
	defer cs.hold()()
	if err := c.op.lock(ctx); err != nil {
		return nil, err
	}
	defer c.op.unlock()
	if err := changeable(c); err != nil {
		return nil, err
	}
	want, beyond, others, err := cs.askToChange(ctx, c, want)
	if err != nil {
		return nil, err
	}
	if err := cs.changeResources(ctx, c, want, beyond); err != nil {
		return nil, err
	}
	cs.tellChanged(ctx, c)
	return others, nil
}

func changeable(c *container) error {
	if s := c.record().State; s != containerRunning && s != containerCreated {
		return fmt.Errorf("%w: container is in %s state", errPrecondition, s.cri())
	}
	return nil
}

// changeResources changes the limits of a container: in its cgroup when it runs, and in its specification. The caller holds op.
func (cs *containers) changeResources(ctx context.Context, c *container, want *runtimeapi.LinuxContainerResources, beyond nri.Beyond) error {
	if err := changeable(c); err != nil {
		return err
	}
	rec := c.record()
	was := &runtimeapi.LinuxContainerResources{}
	if err := decode(rec.Resources, was); err != nil {
		return err
	}
	if adj := want.GetOomScoreAdj(); adj < -1000 || adj > 1000 {
		return invalidf("oom_score_adj %d is not from -1000 to 1000", adj)
	}
	merged := proto.CloneOf(was)
	mergeResources(merged, want)
	res := oci.Resources(merged, cs.host)
	beyond.Add(res)
	if rec.State == containerRunning {
		if err := cs.limit(ctx, c, res); err != nil {
			// The kernel takes one limit after the other, and may have some of them already.
			return errors.Join(err, cs.limit(context.WithoutCancel(ctx), c, oci.Resources(explicit(was, want), cs.host)))
		}
	}
	var score *int
	if before, now := cs.oomScore(int(was.GetOomScoreAdj())), cs.oomScore(int(merged.GetOomScoreAdj())); before != now {
		score = &now
		if rec.State == containerRunning {
			if err := cs.rescore(rec.Cgroup, before, now); err != nil {
				return err
			}
		}
	}
	// Of one that runs it is what a verbose status and checkpoints show, and what is run in it begins with.
	if err := rewriteSpec(cs.paths.spec(c.id), res, score); err != nil {
		return err
	}
	if score != nil {
		c.mu.Lock()
		c.exec = execBase{} // read again when it is needed
		c.mu.Unlock()
	}
	raw, err := encode(merged)
	if err != nil {
		return err
	}
	return cs.update(c, func(r *containerRecord) { r.Resources = raw })
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

// updateResources notes what a pod as a whole has. It is shown to who asks for it, and to plugins.
func (p *pods) updateResources(ctx context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest) error {
	sb, err := p.byID.get(r.GetPodSandboxId())
	if err != nil {
		return err
	}
	defer p.hold()()
	if err := sb.op.lock(ctx); err != nil {
		return err
	}
	defer sb.op.unlock()
	if _, err := sb.live(); err != nil {
		return err
	}
	if err := p.askToUpdate(ctx, sb, r); err != nil {
		return err
	}
	overhead, err := encode(r.GetOverhead())
	if err != nil {
		return err
	}
	resources, err := encode(r.GetResources())
	if err != nil {
		return err
	}
	if err := p.update(sb, func(rec *sandboxRecord) { rec.Overhead, rec.Resources = overhead, resources }); err != nil {
		return err
	}
	p.tellUpdated(ctx, sb)
	return nil
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
	spec, err := readSpec(path)
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
	return writeSpec(path, spec)
}

func readSpec(path string) (*specs.Spec, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read specification: %w", err)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(b, spec); err != nil {
		return nil, fmt.Errorf("decode specification: %w", err)
	}
	return spec, nil
}

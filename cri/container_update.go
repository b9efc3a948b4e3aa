package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/oci"
)

// updateResources changes the limits of a container: in its cgroup when it runs, in its specification before.
func (cs *containers) updateResources(ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest) error {
	c, err := cs.byID.get(r.GetContainerId())
	if err != nil {
		return err
	}
	if err := c.op.lock(ctx); err != nil {
		return err
	}
	defer c.op.unlock()
	rec := c.record()
	if rec.State != containerRunning && rec.State != containerCreated {
		return fmt.Errorf("update container: %w: container is in %s state", errPrecondition, rec.State.cri())
	}
	merged := &runtimeapi.LinuxContainerResources{}
	if err := decode(rec.Resources, merged); err != nil {
		return err
	}
	mergeResources(merged, r.GetLinux())
	if rec.State == containerRunning {
		err = cs.limit(ctx, c, oci.Resources(merged, cs.host))
	} else {
		err = rewriteSpec(cs.paths.spec(c.id), oci.Resources(merged, cs.host))
	}
	if err != nil {
		return fmt.Errorf("update container: %w", err)
	}
	raw, err := encode(merged)
	if err != nil {
		return err
	}
	return cs.update(c, func(r *containerRecord) { r.Resources = raw })
}

// updateResources notes what a pod as a whole has. It is shown to who asks for it, and to plugins.
func (p *pods) updateResources(ctx context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest) error {
	sb, err := p.byID.get(r.GetPodSandboxId())
	if err != nil {
		return err
	}
	if err := sb.op.lock(ctx); err != nil {
		return err
	}
	defer sb.op.unlock()
	if _, err := sb.live(); err != nil {
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
	return p.update(sb, func(rec *sandboxRecord) { rec.Overhead, rec.Resources = overhead, resources })
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
func rewriteSpec(path string, r *specs.LinuxResources) error {
	spec, err := readSpec(path)
	if err != nil {
		return err
	}
	r.Devices = spec.Linux.Resources.Devices
	spec.Linux.Resources = r
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

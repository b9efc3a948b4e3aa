package conformance

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var resourceCases = []testCase{
	{"Resources", resources},
	{"ResourcesInStatus", resourcesInStatus},
	{"ContainerStats", containerStats},
	{"PodStats", podStats},
	{"CgroupParents", cgroupParents},
}

// The files are v2's, or else v1's.
const (
	memoryLimit = "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
	cpuQuota    = "cut -d' ' -f1 /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us"
)

func resources(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", func(c *runtimeapi.ContainerConfig) {
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{
			MemoryLimitInBytes: 64 << 20, CpuPeriod: 100000,
			CpuQuota: 50000, CpuShares: 512, OomScoreAdj: 999,
		}
	})
	p.expect(id, map[string]string{memoryLimit: itoa(64 << 20), cpuQuota: "50000", "cat /proc/1/oom_score_adj": "999"})
	_, err := s.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{
			MemoryLimitInBytes: 128 << 20, CpuPeriod: 100000,
			CpuQuota: 70000,
		},
	})
	must(t)(err)
	p.expect(id, map[string]string{memoryLimit: itoa(128 << 20), cpuQuota: "70000"})
	// Of a container that was only created the limits are those it will have.
	id, err = p.create(p.container("later", "sleep", "100000"))
	must(t)(err)
	_, err = s.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 32 << 20},
	})
	must(t)(err)
	must(t)(p.start(id))
	p.expect(id, map[string]string{memoryLimit: itoa(32 << 20)})
}

func resourcesInStatus(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", func(c *runtimeapi.ContainerConfig) { c.Linux.Resources.MemoryLimitInBytes = 64 << 20 })
	if r := p.status(id).GetResources().GetLinux(); r.GetMemoryLimitInBytes() != 64<<20 {
		t.Errorf("got %v", r)
	}
	_, err := s.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 80 << 20},
	})
	must(t)(err)
	if r := p.status(id).GetResources().GetLinux(); r.GetMemoryLimitInBytes() != 80<<20 {
		t.Errorf("updated: got %v", r)
	}
}

func containerStats(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", nil)
	p.sh(id, "head -c 3000000 /dev/urandom > /tmp/f")
	r, err := s.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
	must(t)(err)
	st := r.GetStats()
	if st.GetAttributes().GetId() != id || st.GetAttributes().GetMetadata().GetName() != "main" ||
		st.GetAttributes().GetLabels()["name"] != "main" {
		t.Errorf("attributes: %v", st.GetAttributes())
	}
	if st.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 || st.GetMemory().GetWorkingSetBytes().GetValue() == 0 ||
		st.GetCpu().GetTimestamp() == 0 || st.GetMemory().GetTimestamp() == 0 {
		t.Errorf("got %v", st)
	}
	// containerd measures in its own time.
	p.eventually("the writable layer to have grown", func() bool {
		r, err := s.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
		must(t)(err)
		return r.GetStats().GetWritableLayer().GetUsedBytes().GetValue() >= 3000000 &&
			r.GetStats().GetWritableLayer().GetInodesUsed().GetValue() > 0
	})
	l, err := s.ListContainerStats(t.Context(),
		&runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{PodSandboxId: p.id}})
	if err != nil || len(l.GetStats()) != 1 || l.GetStats()[0].GetAttributes().GetId() != id {
		t.Errorf("list: got %v, %v", l, err)
	}
	l, err = s.ListContainerStats(t.Context(),
		&runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{"case": "none"}}})
	if err != nil || len(l.GetStats()) != 0 {
		t.Errorf("list of none: got %v, %v", l, err)
	}
}

func podStats(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", nil)
	r, err := s.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: p.id})
	must(t)(err)
	st := r.GetStats()
	if st.GetAttributes().GetId() != p.id || st.GetAttributes().GetMetadata().GetUid() != p.cfg.Metadata.Uid {
		t.Errorf("attributes: %v", st.GetAttributes())
	}
	l := st.GetLinux()
	if l.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 || l.GetMemory().GetWorkingSetBytes().GetValue() == 0 ||
		l.GetNetwork().GetDefaultInterface().GetName() != "eth0" ||
		len(l.GetContainers()) != 1 || l.GetContainers()[0].GetAttributes().GetId() != id {
		t.Errorf("got %v", st)
	}
	if l.GetProcess().GetProcessCount().GetValue() == 0 && !s.lacks(t, "Processes") {
		t.Errorf("processes: %v", l.GetProcess())
	}
	list, err := s.ListPodSandboxStats(t.Context(),
		&runtimeapi.ListPodSandboxStatsRequest{Filter: &runtimeapi.PodSandboxStatsFilter{Id: p.id}})
	if err != nil || len(list.GetStats()) != 1 {
		t.Errorf("list: got %v, %v", list, err)
	}
}

func cgroupParents(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", nil)
	if got := p.sh(id, "grep -c '"+p.cfg.Linux.CgroupParent+"/' /proc/1/cgroup || true"); got == "0" &&
		p.sh(id, "readlink /proc/self/ns/cgroup") == "" {
		t.Errorf("not below %s", p.cfg.Linux.CgroupParent)
	}
	// None at all is one that the runtime chooses.
	p = s.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = "" })
	p.sleeper("main", nil)
}

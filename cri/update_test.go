package cri

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
)

// TestUpdatesLast: what was changed is what the kernel has, what is told, and so for the next runtime too. What cannot
// be is refused and changes nothing.
func TestUpdatesLast(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 128 << 20, CpuShares: 300, CpusetCpus: "0"}
	}, "sleep", "1000")
	update := func(r *runtimeapi.LinuxContainerResources) error {
		_, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: r})
		return err
	}
	for range 2 {
		if err := update(&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 96 << 20, CpuQuota: 40000, CpuPeriod: 100000}); err != nil {
			t.Error(err)
		}
	}
	whole := &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: pod, Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 200 << 20}, Overhead: &runtimeapi.LinuxContainerResources{CpuShares: 20},
	}
	for range 2 {
		if _, err := n.UpdatePodSandboxResources(t.Context(), whole); err != nil {
			t.Error(err)
		}
	}
	check := func(when string) {
		t.Helper()
		u, err := n.core.host.Cgroups.Stat(n.containerRecord(t, id).Cgroup)
		if err != nil || u.Memory.Limit != 96<<20 {
			t.Errorf("%s: the kernel has %d, %v", when, u.Memory.Limit, err)
		}
		d, err := n.core.host.Cgroups.Detail(n.containerRecord(t, id).Cgroup)
		shares := n.shares(t, n.containerRecord(t, id).Cgroup)
		if err != nil || shares < 250 || shares > 300 || d.CPUQuotaUs != 40000 {
			t.Errorf("%s: the kernel has %+v, %v", when, d, err)
		}
		want := &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 96 << 20, CpuQuota: 40000, CpuPeriod: 100000, CpuShares: 300, CpusetCpus: "0"}
		if got := statusOf(t, n.Server, id).GetResources().GetLinux(); !proto.Equal(got, want) {
			t.Errorf("%s: got %v", when, got)
		}
		cs, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var shown struct{ RuntimeSpec specs.Spec }
		if err := json.Unmarshal([]byte(cs.Info["info"]), &shown); err != nil || *shown.RuntimeSpec.Linux.Resources.Memory.Limit != 96<<20 || *shown.RuntimeSpec.Linux.Resources.CPU.Quota != 40000 {
			t.Errorf("%s: got %s, %v", when, cs.Info["info"], err)
		}
		st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var info struct {
			Overhead, Resources struct {
				Linux runtimeapi.LinuxContainerResources `json:"linux"`
			}
		}
		if err := json.Unmarshal([]byte(st.Info["info"]), &info); err != nil || info.Resources.Linux.MemoryLimitInBytes != 200<<20 || info.Overhead.Linux.CpuShares != 20 {
			t.Errorf("%s: got %s, %v", when, st.Info["info"], err)
		}
	}
	check("at once")
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	check("after a restart")

	for name, r := range map[string]*runtimeapi.LinuxContainerResources{
		"CPU that is not":     {CpusetCpus: "100000"},
		"no CPU":              {CpusetCpus: "none"},
		"memory node":         {CpusetMems: "63"},
		"too little of a CPU": {CpuQuota: 1, CpuPeriod: 100000},
		"period":              {CpuPeriod: 1},
	} {
		err := update(r)
		if err == nil {
			t.Errorf("%s: it is taken", name)
		}
		check(name)
	}
	// More is in use than the limit would be.
	n.sh(t, id, "head -c 40000000 /dev/zero > /dev/shm/f")
	err := update(&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 8 << 20, CpuShares: 700, CpuQuota: 90000})
	if err == nil || !strings.Contains(err.Error(), "below what is in use") {
		t.Errorf("less memory than is in use: got %v", err)
	}
	check("too little memory")

	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if err := update(&runtimeapi.LinuxContainerResources{CpuShares: 5}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "EXITED") {
		t.Errorf("of one that has ended: got %v", err)
	}
	if _, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("of one that is not: got %v", err)
	}
}

// TestMemoryWithoutLimit: -1 takes a limit away, on v1 that of memory and swap together first.
func TestMemoryWithoutLimit(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
	}, "sleep", "1000")
	for _, limit := range []int64{-1, 96 << 20, -1, -1} {
		_, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: limit},
		})
		want := uint64(cgroups.NoLimit)
		if limit > 0 {
			want = uint64(limit)
		}
		group := n.containerRecord(t, id).Cgroup
		if u, serr := n.core.host.Cgroups.Stat(group); err != nil || serr != nil || u.Memory.Limit != want {
			t.Errorf("%d: the kernel has %d, %v, %v", limit, u.Memory.Limit, serr, err)
		}
		if d, derr := n.core.host.Cgroups.Detail(group); limit < 0 && n.core.host.Host.Swap && (derr != nil || d.SwapLimit != cgroups.NoLimit) {
			t.Errorf("%d: the kernel has %d of memory and swap, %v", limit, d.SwapLimit, derr)
		}
	}
}

// TestUpdateWithoutSpecification: the specification of a container that runs only tells of it. One that cannot be read
// keeps no limit from the container.
func TestUpdateWithoutSpecification(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	if err := os.Truncate(n.core.host.Paths.Container(id).Spec(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 96 << 20},
	}); err != nil {
		t.Error(err)
	}
	if u, err := n.core.host.Cgroups.Stat(n.containerRecord(t, id).Cgroup); err != nil || u.Memory.Limit != 96<<20 {
		t.Errorf("the kernel has %d, %v", u.Memory.Limit, err)
	}
	if got := statusOf(t, n.Server, id).GetResources().GetLinux().GetMemoryLimitInBytes(); got != 96<<20 {
		t.Errorf("it is told with %d", got)
	}
}

// TestOOMScoreUpdates: an update reaches the processes that have the score of their container, what is run in it later,
// and the next start.
func TestOOMScoreUpdates(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{OomScoreAdj: 900}
	}, "sh", "-c", "sleep 1000 & echo 950 > /proc/self/oom_score_adj; (echo 990 > /proc/self/oom_score_adj; exec sleep 1000) & echo 900 > /proc/self/oom_score_adj; echo ready; wait")
	eventually(t, func() bool { return logText(t, statusOf(t, n.Server, id).LogPath) == "ready\n" })
	update := func(adj int64) error {
		_, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{OomScoreAdj: adj},
		})
		return err
	}
	scores := func() string {
		return n.sh(t, id, "for p in /proc/[0-9]*; do read comm < $p/comm; case $comm in sleep) cat $p/oom_score_adj;; esac; done 2>/dev/null | sort; cat /proc/1/oom_score_adj /proc/self/oom_score_adj")
	}
	eventually(t, func() bool { return scores() == "900\n990\n900\n900" })
	if err := update(940); err != nil {
		t.Fatal(err)
	}
	// That of its own choice is kept.
	if got := scores(); got != "940\n990\n940\n940" {
		t.Errorf("got %q", got)
	}
	if got := statusOf(t, n.Server, id).GetResources().GetLinux().GetOomScoreAdj(); got != 940 {
		t.Errorf("the status says %d", got)
	}
	for _, bad := range []int64{1001, -1001} {
		if err := update(bad); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d: got %v", bad, err)
		}
	}
	created, err := n.tryCreate(pod, "later", nil, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	id = created
	if err := update(960); err != nil {
		t.Fatal(err)
	}
	if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if got := n.sh(t, id, "cat /proc/1/oom_score_adj /proc/self/oom_score_adj"); got != "960\n960" {
		t.Errorf("of one that was not started: got %q", got)
	}
}

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// strangersGroup makes a group that is not the node's, in every hierarchy, as whoever runs the daemons in it would
// have.
func strangersGroup(t *testing.T, name string) string {
	t.Helper()
	roots := []string{"/sys/fs/cgroup"}
	if !unified() {
		roots = []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"}
	}
	group := fmt.Sprintf("/berth-sys-%d-%s", os.Getpid(), name)
	for _, root := range roots {
		if err := os.Mkdir(root+group, 0o755); err != nil {
			t.Skipf("needs hierarchies to make groups in: %v", err)
		}
		t.Cleanup(func() {
			if err := os.Remove(root + group); err != nil {
				t.Error(err)
			}
		})
	}
	return group
}

// procNumber is the number after a word in a file of /proc, or the first one.
func procNumber(t *testing.T, file, word string) int64 {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(strings.TrimPrefix(line, word))
		if !strings.HasPrefix(line, word) || len(f) == 0 {
			continue
		}
		n, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatalf("no %q in %s", word, file)
	return 0
}

func pages(n int64) string { return strconv.FormatInt(n/4096*4096, 10) }

// What is kept for the node, and what the node as a whole, critical pods, huge pages and swap lead to, is read back
// from the kernel's files. Huge pages and swap are looked at where the machine has some.
func TestNodeLimits(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes groups")
	}
	system, kube := strangersGroup(t, "system"), strangersGroup(t, "kube")
	args := []string{
		"--enforce-node-allocatable=pods,system-reserved,kube-reserved", "--system-reserved-cgroup=" +
			system, "--kube-reserved-cgroup=" + kube,
		"--system-reserved=cpu=100m,memory=64Mi,pid=111", "--kube-reserved=cpu=50m,memory=32Mi,pid=99", "--swap-behavior=LimitedSwap",
	}
	total, swap := procNumber(t, "/proc/meminfo", "MemTotal:")<<10, procNumber(t, "/proc/meminfo", "SwapTotal:")<<10
	tasks := min(procNumber(t, "/proc/sys/kernel/pid_max", ""), procNumber(t, "/proc/sys/kernel/threads-max", ""))
	huge := procNumber(t, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "") * 2 << 20
	driverNodes(t, args, func(n *Node, _ string) {
		n.requireValues("system-reserved", system,
			[]groupValue{sharesOf("102", "10"), limitOf("67108864"), {"pids", "pids.max", "111", "pids.max", "111"}})
		n.requireValues("kube-reserved", kube,
			[]groupValue{sharesOf("51", "5"), limitOf("33554432"), {"pids", "pids.max", "99", "pids.max", "99"}})

		asks := "{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi%s}}"
		more := ""
		if huge >= 8<<20 {
			more = ", hugepages-2Mi: 4Mi"
		}
		n.apply("burstable.yaml", pod("burstable", "\n  "+fmt.Sprintf(sleeper, fmt.Sprintf(asks, more))))
		n.apply("guaranteed.yaml", pod("guaranteed", "\n  "+fmt.Sprintf(sleeper, "{limits: {cpu: 100m, memory: 64Mi}}")))
		n.apply("critical.yaml", pod("critical",
			"\n  priorityClassName: system-node-critical\n  "+fmt.Sprintf(sleeper, "{requests: {cpu: 10m}}")))
		group := map[string]string{}
		for _, name := range []string{"burstable", "guaranteed", "critical"} {
			group[name] = n.containerGroup(n.waitReady(name))
		}
		all := filepath.Dir(filepath.Dir(group["guaranteed"]))
		n.requireValues("kubepods", all,
			[]groupValue{
				limitOf(pages(total - 96<<20)),
				{"pids", "pids.max", fmt.Sprint(tasks - 210), "pids.max", fmt.Sprint(tasks - 210)},
			})

		own := strings.TrimSpace(readAll(t, "/proc/self/oom_score_adj"))
		for name, want := range map[string]string{
			"burstable": fmt.Sprint(1000 - 1000*(64<<20)/total), "guaranteed": "-997",
			"critical": "-997",
		} {
			// Without CAP_SYS_RESOURCE it is as low as the agent's.
			if got := strings.TrimSpace(readAll(t, "/proc/"+n.processesIn(group[name])[0]+"/oom_score_adj")); got != want &&
				got != own {
				n.t.Errorf("%s has oom_score_adj %s, want %s", name, got, want)
			}
		}
		n.requireValues("guaranteed's swap", group["guaranteed"],
			[]groupValue{{"memory", "memory.memsw.limit_in_bytes", "67108864", "memory.swap.max", "0"}})
		// v1 has no swap apart from memory.
		part := pages(int64(float64(64<<20) / float64(total) * float64(swap)))
		n.requireValues("burstable's swap", group["burstable"],
			[]groupValue{{"memory", "memory.memsw.limit_in_bytes", "134217728", "memory.swap.max", part}})
		if more != "" {
			for g, want := range map[string]string{
				group["burstable"]: "4194304", filepath.Dir(group["burstable"]): "4194304",
				filepath.Dir(group["guaranteed"]): "0", all: fmt.Sprint(huge),
			} {
				n.requireValues("huge pages", g,
					[]groupValue{{"hugetlb", "hugetlb.2MB.limit_in_bytes", want, "hugetlb.2MB.max", want}})
			}
		}
	})
}

func readAll(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What cannot be had is refused at admission, with kubelet's reasons and the arithmetic, and what just can runs.
func TestAdmission(t *testing.T) {
	t.Parallel()
	if all := strings.TrimSpace(readAll(t, "/sys/devices/system/cpu/online")); all != "0-1" {
		t.Skipf("needs a machine with the CPUs 0-1 to know what is given, has %s", all)
	}
	n := startNode(t, "--cpu-manager-policy=static", "--cpu-manager-policy-options=strict-cpu-reservation=true",
		"--reserved-cpus=0")
	for _, c := range []struct{ name, annotations, resources, reason, message string }{
		{
			"memory", "", "{requests: {memory: 1Ti}}", "OutOfmemory",
			"Node didn't have enough resource: memory, requested: 1099511627776, used: 0, capacity: ",
		},
		{
			"cpus", "", "{limits: {cpu: 2, memory: 32Mi}}", "OutOfcpu",
			"Node didn't have enough resource: cpu, requested: 2000, used: 0, capacity: 1000",
		},
		{
			"huge", "", "{limits: {cpu: 100m, memory: 32Mi, hugepages-1Gi: 1024Gi}}", "OutOfhugepages-1Gi",
			"hugepages-1Gi, requested: 1099511627776, used: 0, capacity: ",
		},
		{
			"little", "", "{limits: {memory: 2Mi}}", "UnexpectedAdmissionError",
			"container c: limits.memory is 2Mi, 2097152 bytes: the least that a container can be started in is 3145728 bytes",
		},
		{
			"weight", "berth.node/io-weight: '0'", "{}", "UnexpectedAdmissionError",
			`annotation berth.node/io-weight: "0" is not a number from 1 to 10000`,
		},
	} {
		n.apply(c.name+".yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: "+c.name+", annotations: "+
			"{"+c.annotations+"}}\nspec:\n  "+fmt.Sprintf(sleeper, c.resources)+"\n")
		n.waitRefused(c.name, c.reason, corev1.PodFailed, c.message)
	}
	// Only the strictly reserved CPU would be left for a pod that shares.
	n.apply("least.yaml", pod("least", "\n  "+fmt.Sprintf(sleeper, "{requests: {cpu: 0}, limits: {memory: 3Mi}}")))
	n.waitReady("least")
	if got := n.sh("least", "echo runs"); got != "runs\n" {
		t.Errorf("a command in 3 MiB: %q", got)
	}
	n.apply("own.yaml", pinned("own", "1"))
	n.waitRefused("own", "UnexpectedAdmissionError", corev1.PodPending,
		"no CPU would be left for the containers that share: 1 are reserved strictly, the other 1 of 2 exclusive")
	n.remove("least.yaml")
	n.waitGone("least")
	n.waitReady("own")
	n.waitCPUs("own", "1")
}

// numaNodes are the CPUs of each NUMA node, the memory of the largest, and a request that no node alone can meet but
// all together can. A machine without such nodes is none to look at.
func numaNodes(t *testing.T) (cpus []string, beyondOne int64) {
	t.Helper()
	nodes, err := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	if err != nil || len(nodes) < 2 {
		t.Skip("needs two NUMA nodes (numa=fake=2 makes some)")
	}
	var most int64
	for _, node := range nodes {
		id := strings.TrimPrefix(filepath.Base(node), "node")
		most = max(most, procNumber(t, node+"/meminfo", "Node "+id+" MemTotal:")<<10)
		cpus = append(cpus, strings.TrimSpace(readAll(t, node+"/cpulist")))
	}
	beyondOne = most + most/10
	if beyondOne > procNumber(t, "/proc/meminfo", "MemTotal:")<<10-200<<20 {
		t.Skip("needs NUMA nodes of which one has not nearly all memory")
	}
	return cpus, beyondOne
}

// A pod whose memory is there, but not on one NUMA node, is refused where it has to be aligned.
func TestTopologyAffinity(t *testing.T) {
	t.Parallel()
	_, beyondOne := numaNodes(t)
	n := startNode(t, "--memory-manager-policy=Static", "--reserved-memory=0:memory=100Mi",
		"--topology-manager-policy=single-numa-node")
	n.apply("aligned.yaml", aligned("aligned", "100m", beyondOne))
	n.waitRefused("aligned", "TopologyAffinityError", corev1.PodFailed, fmt.Sprintf("memory requested=%d", beyondOne))
	n.remove("aligned.yaml")
	n.waitGone("aligned")
	n.apply("aligned.yaml", aligned("aligned", "100m", 64<<20))
	p := n.waitReady("aligned")
	if got := n.groupFile("aligned", "cpuset.mems", "cpuset.mems"); len(got) != 1 {
		t.Errorf("a pod of one NUMA node has the nodes %q (%s)", got, p.UID)
	}
}

func aligned(name, cpu string, memory int64) string {
	return pod(name, "\n  "+fmt.Sprintf(sleeper, fmt.Sprintf("{limits: {cpu: %s, memory: %d}}", cpu, memory)))
}

// CPUs and memory of one's own come from the same NUMA node; what no node has alone is refused, or with the policy
// restricted, which wants as few nodes as can do, given from both. The kernel is asked what each has.
func TestAlignedCPUsAndMemory(t *testing.T) {
	t.Parallel()
	cpus, beyondOne := numaNodes(t)
	if strings.Join(cpus, " ") != "0-1 2-3" {
		t.Skipf("needs a machine with the CPUs 0-1 and 2-3 on two NUMA nodes to know what is given, has %q", cpus)
	}
	for _, policy := range []string{"restricted", "single-numa-node"} {
		t.Run(policy, func(t *testing.T) {
			n := startNode(t, "--cpu-manager-policy=static", "--reserved-cpus=0", "--memory-manager-policy=Static",
				"--reserved-memory=0:memory=100Mi",
				"--topology-manager-policy="+policy)
			has := func(name, cpus, mems string) {
				t.Helper()
				n.waitReady(name)
				n.waitCPUs(name, cpus)
				if got := n.groupFile(name, "cpuset.mems", "cpuset.mems"); got != mems {
					t.Errorf("%s has the memory of nodes %q, want %s", name, got, mems)
				}
			}
			n.apply("both.yaml", aligned("both", "2", 64<<20))
			has("both", "2-3", "1")
			n.apply("one.yaml", aligned("one", "1", 64<<20))
			has("one", "1", "0")
			for _, name := range []string{"both", "one"} {
				n.remove(name + ".yaml")
				n.waitGone(name)
			}
			n.apply("wide.yaml", aligned("wide", "3", beyondOne))
			if policy == "restricted" {
				has("wide", "1-3", "0-1")
				return
			}
			n.waitRefused("wide", "TopologyAffinityError", corev1.PodFailed, fmt.Sprintf("memory requested=%d", beyondOne))
		})
	}
}

// The totals of what is reserved have to be the same for NUMA nodes and the node.
func TestReservedMemoryOfNUMANodes(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--memory-manager-policy=Static", "--system-reserved=memory=64Mi", "--reserved-memory=0:memory=100Mi")
	n.launch()
	<-n.exited
	want := "--reserved-memory: the total of memory is 100Mi, but the node keeps 164Mi (--system-reserved 64Mi + " +
		"--kube-reserved 0 + --eviction-hard 100Mi)"
	if log := n.logTail(); n.cmd.ProcessState.Success() || !strings.Contains(log, want) {
		t.Errorf("the agent ended with %s and\n%s", n.cmd.ProcessState, log)
	}
	n.args = slices.Replace(n.args, 2, 3, "--reserved-memory=0:memory=164Mi")
	n.start()
}

// By policy a value that somebody has changed is told of only, or not looked at.
func TestDriftPolicies(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"report", "off"} {
		t.Run(policy, func(t *testing.T) {
			n := startNode(t, "--cgroup-drift="+policy)
			n.apply("a.yaml", pod("a", "\n  "+fmt.Sprintf(sleeper, "{limits: {cpu: 500m, memory: 64Mi}}")))
			group := filepath.Dir(n.containerGroup(n.waitReady("a")))
			all := filepath.Dir(group)
			bad := sharesOf("77", "77")
			for _, g := range []string{group, all} {
				file, value := bad.at(g)
				if err := os.WriteFile(file, []byte(value), 0); err != nil {
					t.Fatal(err)
				}
			}
			told := func(g string) bool {
				events := n.must("events")
				return strings.Contains(events, "Group "+g+": ") && !strings.Contains(events, "corrected")
			}
			if policy == "report" {
				n.eventually("both to be told of", func() error {
					if !told(group) || !told(all) {
						return fmt.Errorf("events:\n%s", n.must("events"))
					}
					return nil
				})
			}
			// Another pod comes and goes meanwhile.
			n.apply("b.yaml", pod("b", "\n  "+fmt.Sprintf(sleeper, "{}")))
			n.waitReady("b")
			n.remove("b.yaml")
			n.waitGone("b")
			n.requireValues("what was changed", group, []groupValue{bad})
			n.requireValues("what was changed", all, []groupValue{bad})
			if policy == "off" && strings.Contains(n.must("events"), "CgroupChanged") {
				t.Errorf("events:\n%s", n.must("events"))
			}
		})
	}
}

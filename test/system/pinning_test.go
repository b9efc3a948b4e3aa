package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// pinned is a manifest of a pod with one container; cpu "" makes it BestEffort, else Guaranteed.
func pinned(name, cpu string) string {
	resources := ""
	if cpu != "" {
		resources = fmt.Sprintf("\n    resources: {limits: {cpu: %q, memory: 32Mi}}", cpu)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: %s
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"]%s
`, name, image, resources)
}

// groupFile reads a file of the group of a pod's container c out of the kernel; a file of v2 where v1 has another name.
func (n *Node) groupFile(name, v1, v2 string) string {
	n.t.Helper()
	p := n.pod(name)
	if p == nil || len(p.Status.ContainerStatuses) == 0 {
		return "no container"
	}
	for _, group := range n.groupsOf(p.Status.ContainerStatuses[0].ContainerID) {
		for _, file := range []string{v1, v2} {
			if b, err := os.ReadFile(filepath.Join(group, file)); err == nil {
				return strings.TrimSpace(string(b))
			}
		}
	}
	return "no group"
}

// waitCPUs waits until the kernel lets a pod's container run on those CPUs only. The last step to it is the kernel's.
func (n *Node) waitCPUs(name, want string) {
	n.t.Helper()
	n.eventually(name+" on CPUs "+want, func() error {
		// On v2 a group that was told nothing has an empty list, and its parent's CPUs.
		if got := n.groupFile(name, "cpuset.effective_cpus", "cpuset.cpus.effective"); got != want {
			return fmt.Errorf("it is on %q", got)
		}
		return nil
	})
}

func (n *Node) waitRefused(name, reason string, phase corev1.PodPhase, message string) {
	n.t.Helper()
	n.wait(name, "refused for "+reason, func(p *corev1.Pod) bool {
		return p != nil && p.Status.Reason == reason && p.Status.Phase == phase && strings.Contains(p.Status.Message, message)
	})
}

// TestExclusiveCPUs follows one exclusive CPU of two from pod to pod, through a killed agent, and asks the kernel each
// time.
func TestExclusiveCPUs(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--cpu-manager-policy=static", "--reserved-cpus=0")
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.TrimSpace(string(online))
	if all != "0-1" {
		t.Skipf("needs a machine with the CPUs 0-1 to know what is given, has %s", all)
	}
	n.start()
	n.apply("shared.yaml", pinned("shared", ""))
	// It asks for nothing, since what is not reserved is one pod's in the end, and may have half a CPU.
	n.apply("half.yaml", strings.Replace(pinned("half", "500m"), "limits: {", "requests: {cpu: 0}, limits: {", 1))
	n.waitReady("shared")
	n.waitReady("half")
	n.waitCPUs("shared", "0-1")
	n.waitCPUs("half", "0-1")

	// The pod gets the CPU that is not reserved, and who runs already leaves it.
	n.apply("own.yaml", pinned("own", "1"))
	n.waitReady("own")
	for name, want := range map[string]string{"own": "1", "shared": "0", "half": "0"} {
		if got := n.groupFile(name, "cpuset.cpus", "cpuset.cpus"); got != want {
			t.Errorf("with an exclusive CPU given out %s has CPUs %q, want %s", name, got, want)
		}
	}
	if got := n.groupFile("own", "cpu.cfs_quota_us", "cpu.max"); got != "-1" && !strings.HasPrefix(got, "max") {
		t.Errorf("the CPU quota of a container with a CPU of its own is %s", got)
	}
	if got := n.groupFile("half", "cpu.cfs_quota_us", "cpu.max"); !strings.HasPrefix(got, "50000") {
		t.Errorf("the CPU quota of a container on shared CPUs is %s", got)
	}
	id := n.pod("own").Status.ContainerStatuses[0].ContainerID

	if got := n.metrics("/metrics").get(t, "kubelet_cpu_manager_shared_pool_size_millicores", nil); got != 1000 {
		t.Errorf("the metrics tell of %f thousandths of shared CPUs", got)
	}

	// What can be had later waits, what can never be had has failed.
	n.apply("later.yaml", pinned("later", "1"))
	n.waitRefused("later", "OutOfcpu", corev1.PodPending, "requested: 1000, used: 1000, capacity: 1000")
	n.apply("never.yaml", pinned("never", "2"))
	n.waitRefused("never", "OutOfcpu", corev1.PodFailed, "requested: 2000, used: 1000, capacity: 1000")

	// Drift: somebody changes a value, which is told and put right.
	n.drift(id, "cpuset.cpus", "0-1")
	n.eventually("the change to be told of and corrected", func() error {
		events := n.must("events", "own")
		if !strings.Contains(events, "cpuset.cpus is 0-1, should be 1 (CPUs that were assigned)") ||
			!strings.Contains(events, "; corrected") {
			return fmt.Errorf("events:\n%s", events)
		}
		if got := n.groupFile("own", "cpuset.cpus", "cpuset.cpus"); got != "1" {
			return fmt.Errorf("it has CPUs %s", got)
		}
		return nil
	})

	// Somebody changes a value while no agent looks. The next one puts it right and moves nobody else.
	n.kill()
	n.drift(id, "cpuset.cpus", "0-1")
	n.start()
	n.waitReady("own")
	n.waitCPUs("own", "1")
	n.waitCPUs("shared", "0")
	if now := n.pod("own").Status.ContainerStatuses[0].ContainerID; now != id {
		t.Errorf("the agent's restart has replaced container %s by %s", id, now)
	}
	n.waitRefused("later", "OutOfcpu", corev1.PodPending, "requested: 1000, used: 1000, capacity: 1000")

	// What a pod gives back the one gets that waits; with both gone it is shared again.
	n.remove("own.yaml")
	n.waitGone("own")
	n.waitReady("later")
	n.waitCPUs("later", "1")
	n.waitCPUs("shared", "0")
	n.remove("later.yaml")
	n.waitGone("later")
	n.waitCPUs("shared", "0-1")
	n.waitCPUs("half", "0-1")
	n.eventually("the file of assignments to say that nothing is given out", func() error {
		b, err := os.ReadFile(filepath.Join(n.Dir, "root", "pinned.json"))
		if err == nil && !strings.Contains(string(b), `"pods":[]`) {
			err = fmt.Errorf("it says %s", b)
		}
		return err
	})
}

// TestExclusiveCPUsPolicyChanges turns the policy on and off under running pods: kubelet wants its file removed and its
// pods drained, here the pods are moved.
func TestExclusiveCPUsPolicyChanges(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if b, err := os.ReadFile("/sys/devices/system/cpu/online"); err != nil || strings.TrimSpace(string(b)) != "0-1" {
		t.Skipf("needs a machine with the CPUs 0-1 to know what is given, has %s (%v)", b, err)
	}
	n.start()
	n.apply("own.yaml", pinned("own", "1"))
	n.apply("shared.yaml", pinned("shared", ""))
	n.waitReady("own")
	n.waitReady("shared")
	id := n.pod("own").Status.ContainerStatuses[0].ContainerID
	n.waitCPUs("own", "0-1")

	n.stop()
	n.args = []string{"--cpu-manager-policy=static", "--reserved-cpus=0"}
	n.start()
	n.waitCPUs("own", "1")
	n.waitCPUs("shared", "0")
	n.eventually("the quota to be gone", func() error {
		if got := n.groupFile("own", "cpu.cfs_quota_us", "cpu.max"); got != "-1" && !strings.HasPrefix(got, "max") {
			return fmt.Errorf("the CPU quota of a container with a CPU of its own is %s", got)
		}
		return nil
	})
	n.asTheyShould()
	if got := n.must("cgroups", "show", "own/c"); !strings.Contains(got, "exclusive CPUs") ||
		!strings.Contains(got, "no quota: it has CPUs of its own") {
		t.Errorf("the inspector does not know of the CPU of its own:\n%s", got)
	}

	n.kill()
	n.args = nil
	n.start()
	n.waitCPUs("own", "0-1")
	n.waitCPUs("shared", "0-1")
	n.eventually("the quota to be back", func() error {
		if got := n.groupFile("own", "cpu.cfs_quota_us", "cpu.max"); !strings.HasPrefix(got, "100000") {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
	n.asTheyShould() // of the pods too, and nobody is where another one was alone
	n.eventually("the file of assignments to be gone", func() error {
		if _, err := os.Stat(filepath.Join(n.Dir, "root", "pinned.json")); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	if now := n.pod("own").Status.ContainerStatuses[0].ContainerID; now != id {
		t.Errorf("container %s was replaced by %s", id, now)
	}
}

// asTheyShould waits until the inspector finds every group as it is to be: one is changed after the other.
func (n *Node) asTheyShould() {
	n.t.Helper()
	n.eventually("all groups to be as they should", func() error {
		if out, errs, code := n.berth("cgroups", "check"); code != 0 {
			return fmt.Errorf("%s%s", out, errs)
		}
		return nil
	})
}

// groupsOf are the directories of a container's group in every hierarchy.
func (n *Node) groupsOf(containerID string) []string {
	_, id, _ := strings.Cut(containerID, "://")
	var out []string
	for _, root := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup"} {
		for _, depth := range []string{"*", "*/*"} {
			found, _ := filepath.Glob(filepath.Join(root, n.CgroupRoot, "*kubepods*", depth, "*"+id+"*"))
			out = append(out, found...)
		}
	}
	return out
}

// drift changes a value of a container's group behind the agent's back.
func (n *Node) drift(containerID, file, value string) {
	n.t.Helper()
	for _, group := range n.groupsOf(containerID) {
		path := filepath.Join(group, file)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			n.t.Fatal(err)
		}
		return
	}
	n.t.Fatalf("no %s of container %s", file, containerID)
}

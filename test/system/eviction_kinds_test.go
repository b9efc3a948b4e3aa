package system

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestEvictionOfStarting has a bomb go off while its start is not over: its status does not say yet that it runs, and
// it goes at once all the same. It takes less than pods may have, or the kernel would be faster than an agent that
// waits for a processor.
func TestEvictionOfStarting(t *testing.T) {
	t.Parallel()
	n := shortNode(t, 512)
	n.start()
	n.apply("quiet.yaml", eater("quiet", ", '32'", "{requests: {memory: 64Mi}}", ""))
	before := n.waitReady("quiet")
	const hook = "lifecycle: {postStart: {exec: {command: [sh, -c, sleep 1000000]}}}, resources:"
	n.apply("bomb.yaml", strings.Replace(
		eater("bomb", ", '430', '50'", "{}", "\n  restartPolicy: Never"), "resources:", hook, 1))
	n.requireEvicted("bomb", "memory")
	n.requireSame(before, n.pod("quiet"))
	if d := n.requireDecisions(1); d[0].Result.Error != "" {
		t.Errorf("%+v", d)
	}
	if out := n.must("events", "-A", "--reason", "OOMKilling"); strings.Contains(out, "bomb") {
		t.Errorf("the kernel was faster: %s", out)
	}
}

// ranked is what a pod has of the memory, in bytes, as it is compared with others.
func (n *Node) ranked(name string) int64 {
	n.t.Helper()
	var all struct {
		Ranked []struct {
			Pod struct {
				Name  string `json:"name"`
				Usage int64  `json:"usage"`
			} `json:"pod"`
		} `json:"ranked"`
	}
	out := n.must("eviction", "rank", "-o", "json")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		n.t.Fatal(err)
	}
	for _, l := range all.Ranked {
		if l.Pod.Name == name {
			return l.Pod.Usage
		}
	}
	n.t.Fatalf("%s is not ranked: %s", name, out)
	return 0
}

// TestEvictionOfFilesInMemory has a pod whose memory is files of an emptyDir: they are its own, also those of a
// container that has ended, and are gone with it.
func TestEvictionOfFilesInMemory(t *testing.T) {
	t.Parallel()
	const first = 120 // MiB
	files := func(name, more string) string {
		const data = "volumeMounts: [{name: data, mountPath: /data}]"
		return pod(name, fmt.Sprintf(`
  restartPolicy: Never
  initContainers:
  - {name: first, image: %[1]s, command: [sh, -c, 'dd if=/dev/zero of=/data/first bs=1M count=%[2]d 2>/dev/null'], %[3]s}
  containers:
  - {name: main, image: %[1]s, command: [sh, -c, '%[4]ssleep 1000000'], %[3]s, resources: {requests: {memory: 1Mi}}}
  volumes: [{name: data, emptyDir: {medium: Memory}}]`, image, first, data, more))
	}
	n := shortNode(t, 384)
	n.start()
	n.apply("quiet.yaml", eater("quiet", ", '32'", "{requests: {memory: 64Mi}}", ""))
	before := n.waitReady("quiet")
	n.apply("files.yaml", files("files", "while [ ! -e /data/go ]; do sleep 0.1; done; "+
		"for i in $(seq 43); do dd if=/dev/zero of=/data/$i bs=1M count=4 2>/dev/null; sleep 0.05; done; "))
	n.waitReady("files")
	if used := n.ranked("files-node"); used < first<<20 {
		t.Errorf("the pod has %d bytes of memory, and has written %d MiB of it", used, first)
	}
	n.sh("files", "touch /data/go")
	n.requireEvicted("files", "memory")
	n.requireSame(before, n.pod("quiet"))
	// What it had is free again: another one can have as much, and nobody goes for it.
	n.apply("late.yaml", files("late", ""))
	n.waitReady("late")
	n.requireSame(before, n.pod("quiet"))
	n.requireDecisions(1)
}

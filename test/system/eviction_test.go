package system

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// shortNode is a node whose pods have so many MiB together, so that the machine is safe from them.
func shortNode(t *testing.T, mib int64, args ...string) *Node {
	t.Helper()
	total := procNumber(t, "/proc/meminfo", "MemTotal:") << 10
	reserved := fmt.Sprintf("--system-reserved=memory=%d", total-mib<<20)
	return newNode(t, append([]string{reserved, "--eviction-pressure-transition-period=2s"}, args...)...)
}

// eater is a pod that takes so much memory, and then stays.
func eater(name, eat, resources, more string) string {
	path, err := filepath.Abs(bin("test"))
	if err != nil {
		panic(err)
	}
	return pod(name, more+`
  containers:
  - {name: main, image: `+image+`, command: [/test/eat`+eat+`], resources: `+resources+`, volumeMounts: [{name: test, mountPath: /test, readOnly: true}]}
  volumes: [{name: test, hostPath: {path: `+path+`}}]`)
}

// decision is what is remembered of an eviction.
type decision struct {
	Signal string `json:"signal"`
	Pod    struct {
		Name string `json:"name"`
	} `json:"pod"`
	Reason       string `json:"reason"`
	GraceSeconds int64  `json:"graceSeconds"`
	Result       struct {
		Error string `json:"error"`
		Told  bool   `json:"told"`
	} `json:"result"`
}

// decisions are those that a pod ended by.
func (n *Node) decisions() []decision {
	n.t.Helper()
	var all struct{ Decisions []decision }
	var out []decision
	if err := json.Unmarshal([]byte(n.must("eviction", "why", "-o", "json")), &all); err != nil {
		n.t.Fatal(err)
	}
	for _, d := range all.Decisions {
		if d.Pod.Name != "" {
			out = append(out, d)
		}
	}
	return out
}

// requireDecisions waits until that many pods have gone: the last is told of when what it had is back.
func (n *Node) requireDecisions(count int) []decision {
	n.t.Helper()
	var all []decision
	n.eventually("evictions to be told of", func() error {
		if all = n.decisions(); len(all) < count {
			return fmt.Errorf("of %d pods: %+v", count, all)
		}
		return nil
	})
	if len(all) != count {
		n.t.Errorf("%d pods were evicted, want %d: %+v", len(all), count, all)
	}
	return all
}

// requireEvicted waits until a pod is, and returns it.
func (n *Node) requireEvicted(name, resource string) *corev1.Pod {
	n.t.Helper()
	p := n.wait(name, "evicted", func(p *corev1.Pod) bool {
		return p != nil && p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted"
	})
	if !strings.Contains(p.Status.Message, "The node was low on resource: "+resource+". Threshold quantity: ") {
		n.t.Errorf("%s: %s", name, p.Status.Message)
	}
	disrupted := false
	for _, c := range p.Status.Conditions {
		disrupted = disrupted || c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet
	}
	if !disrupted {
		n.t.Errorf("%s has no condition DisruptionTarget: %v", name, p.Status.Conditions)
	}
	return p
}

// waitCondition waits until the node says so of itself.
func (n *Node) waitCondition(condition, status string) {
	n.t.Helper()
	n.eventually(condition+" to be "+status, func() error {
		out := n.must("eviction", "status")
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == condition && f[1] == status {
				return nil
			}
		}
		return errors.New(out)
	})
}

// TestEvictionOfBomb has a pod that takes memory as fast as it can: it goes, and nobody else does. Those that have
// asked for what they have do not notice.
func TestEvictionOfBomb(t *testing.T) {
	t.Parallel()
	n := shortNode(t, 512)
	n.start()
	before := map[string]*corev1.Pod{}
	for name, resources := range map[string]string{
		"guaranteed": "{limits: {cpu: 100m, memory: 128Mi}}", "burstable": "{requests: {memory: 96Mi}}", "quiet": "{}",
	} {
		n.apply(name+".yaml", eater(name, ", '32'", resources, ""))
		before[name] = n.waitReady(name)
	}
	const runs, most = 3, 10 // bombs that are evicted, of so many
	evicted := 0
	for i := 0; i < most && evicted < runs; i++ {
		bomb := fmt.Sprintf("bomb%d", i)
		n.apply(bomb+".yaml", eater(bomb, ", '4000'", "{}", "\n  restartPolicy: Never"))
		p := n.wait(bomb, "ended", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodFailed })
		if s := p.Status.ContainerStatuses[0].State.Terminated; s == nil || s.ExitCode != 137 {
			t.Errorf("its container: %+v", p.Status.ContainerStatuses[0].State)
		} else if p.Status.Reason == "" && s.Reason == "OOMKilled" {
			t.Logf("the kernel was faster than an agent that waits for a processor: %s", bomb)
			continue
		}
		evicted++
		if p := n.requireEvicted(bomb, "memory"); !strings.Contains(p.Status.Message, "Container main was using ") {
			t.Error(p.Status.Message)
		}
		n.waitCondition("MemoryPressure", "False")
	}
	if evicted < runs {
		t.Fatalf("%d of %d bombs were evicted", evicted, most)
	}
	for name, p := range before {
		n.requireSame(p, n.pod(name))
	}
	all := n.requireDecisions(runs)
	if out := n.must("events", "-A", "--reason", "OOMKilling"); strings.Contains(out, "guaranteed") {
		t.Errorf("the kernel was faster: %s", out)
	}
	if out, _, code := n.berth("eviction", "why", "guaranteed"); code != 4 {
		t.Errorf("exit code %d: %s", code, out)
	}
	if got := n.metrics("/metrics").get(t, "kubelet_evictions", map[string]string{"eviction_signal": "allocatableMemory.available"}); got != runs {
		t.Errorf("kubelet_evictions is %v", got)
	}
	n.kill() // what was decided is known over a restart
	n.start()
	if again := n.decisions(); len(again) != len(all) {
		t.Errorf("%d of %d evictions are known after a restart", len(again), len(all))
	}
}

// TestEvictionSparesCache has a pod that reads and writes files far larger than what pods may have together: its
// cache is the kernel's to drop, and no reason to end it.
func TestEvictionSparesCache(t *testing.T) {
	t.Parallel()
	n := shortNode(t, 384)
	n.start()
	n.apply("cache.yaml", pod("cache", idle))
	before := n.waitReady("cache")
	n.sh("cache", "dd if=/dev/zero of=/big bs=1M count=600 2>/dev/null; for i in 1 2 3; do cat /big > /dev/null; done")
	n.requireSame(before, n.pod("cache"))
	if all := n.decisions(); len(all) > 0 {
		t.Errorf("it was evicted: %+v", all)
	}
	if out := n.must("eviction", "status"); strings.Contains(out, "True") {
		t.Errorf("pressure by cache alone:\n%s", out)
	}
}

// TestSoftEviction has a pod that leaks: the soft threshold ends it with time to do so, before the hard one is met.
func TestSoftEviction(t *testing.T) {
	t.Parallel()
	n := shortNode(t, 512, "--eviction-soft=allocatableMemory.available<300Mi", "--eviction-soft-grace-period=allocatableMemory.available=500ms",
		"--eviction-max-pod-grace-period=5")
	n.start()
	n.apply("quiet.yaml", eater("quiet", ", '32'", "{requests: {memory: 64Mi}}", ""))
	before := n.waitReady("quiet")
	// The hard one is not met, however late it is looked at.
	n.apply("leak.yaml", eater("leak", ", '280', '50'", "{}", "\n  restartPolicy: Never"))
	n.requireEvicted("leak", "memory")
	n.requireSame(before, n.pod("quiet"))
	all := n.requireDecisions(1)
	if !strings.HasPrefix(all[0].Reason, "soft threshold") || all[0].GraceSeconds != 1 {
		t.Errorf("%+v", all)
	}
}

// TestDiskEviction has a pod fill the node's disk, by an emptyDir without a limit or by its own file system: it
// goes, and what it had is free again, so that another one can come.
func TestDiskEviction(t *testing.T) {
	t.Parallel()
	const volume = "\n  volumes: [{name: data, emptyDir: {}}]"
	for what, c := range map[string]struct{ dir, mount, volume string }{
		"volume": {"/data", ", volumeMounts: [{name: data, mountPath: /data}]", volume}, "layer": {"/big", "", ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "--eviction-hard=nodefs.available<30%", "--eviction-pressure-transition-period=2s")
			n.disk("root", "400m")
			n.start()
			n.apply("quiet.yaml", pod("quiet", idle))
			before := n.waitReady("quiet")
			n.apply("filler.yaml", pod("filler", "\n  restartPolicy: Never\n  containers: [{name: main, image: "+image+
				", command: [sh, -c, 'mkdir -p "+c.dir+"; for i in $(seq 1000); do dd if=/dev/zero of="+c.dir+"/$i bs=1M count=4 2>/dev/null; done; sleep 1000000']"+
				c.mount+"}]"+c.volume))
			p := n.requireEvicted("filler", "ephemeral-storage")
			n.apply("late.yaml", pod("late", idle))
			n.waitReady("late")
			n.requireSame(before, n.pod("quiet"))
			all := n.requireDecisions(1)
			if all[0].Signal != "nodefs.available" {
				t.Errorf("%+v", all)
			}
			if s := p.Status.ContainerStatuses[0].State.Terminated; s == nil || s.ExitCode != 137 {
				t.Errorf("its container: %+v", p.Status.ContainerStatuses[0].State)
			}
			if out := n.must("eviction", "rank", "--signal", "nodefs.available"); !strings.Contains(out, "default/quiet-node") {
				t.Error(out)
			}
		})
	}
}

// TestEvictionIsFinished kills the agent as soon as it has decided: the next one finishes it, and nobody else goes. The
// kernel has no reason to be faster: what the bombs take is short of what pods may have, here and below.
func TestEvictionIsFinished(t *testing.T) {
	t.Parallel()
	n := shortNode(t, 512)
	n.start()
	n.apply("quiet.yaml", eater("quiet", ", '32'", "{}", ""))
	before := n.waitReady("quiet")
	for i := range 3 {
		bomb := fmt.Sprintf("bomb%d", i)
		n.apply(bomb+".yaml", eater(bomb, ", '430', '200'", "{}", "\n  restartPolicy: Never"))
		n.eventually(bomb+" to be told to end", func() error {
			marks, err := filepath.Glob(n.Dir + "/root/pods/*/ending.json")
			if err == nil && len(marks) <= i {
				err = errors.New("no pod has a mark")
			}
			return err
		})
		n.kill()
		n.start()
		n.requireEvicted(bomb, "memory")
		n.requireSame(before, n.waitReady("quiet"))
	}
}

// TestEvictedReturns has a static pod that leaks each time that it runs. It returns when the node is not short any
// more, and what is beside it runs through.
func TestEvictedReturns(t *testing.T) {
	t.Parallel()
	n := shortNode(t, 384)
	n.start()
	n.apply("quiet.yaml", eater("quiet", ", '32'", "{requests: {memory: 64Mi}}", ""))
	before := n.waitReady("quiet")
	n.apply("leak.yaml", eater("leak", ", '305'", "{}", ""))
	n.eventually("the pod to have been evicted three times", func() error {
		if all := n.decisions(); len(all) < 3 {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
	n.requireSame(before, n.pod("quiet"))
	for _, d := range n.decisions() {
		if d.Pod.Name != "leak-node" || d.Result.Error != "" {
			t.Errorf("%+v", d)
		}
	}
	if out := n.must("events", "leak"); !strings.Contains(out, "Returning") {
		t.Error(out)
	}
}

// TestFlappingPressure has memory run short again and again: each pod goes once, and the condition holds throughout.
func TestFlappingPressure(t *testing.T) {
	t.Parallel()
	n := shortNode(t, 384, "--eviction-pressure-transition-period=1h")
	n.start()
	n.apply("quiet.yaml", eater("quiet", ", '32'", "{requests: {memory: 64Mi}}", ""))
	before := n.waitReady("quiet")
	const runs = 4
	for i := range runs {
		bomb := fmt.Sprintf("bomb%d", i)
		n.apply(bomb+".yaml", eater(bomb, ", '305'", "{requests: {memory: 1Mi}}", "\n  restartPolicy: Never"))
		n.requireEvicted(bomb, "memory")
		n.waitCondition("MemoryPressure", "True")
	}
	n.requireSame(before, n.pod("quiet"))
	n.requireDecisions(runs)
	out := n.must("events", "-A", "--reason", "NodeHasInsufficientMemory,NodeHasSufficientMemory")
	if strings.Count(out, "NodeHas") != 2 || strings.Contains(out, "(x") {
		t.Errorf("the condition flaps:\n%s", out)
	}
	// What requests nothing waits as long as it holds.
	n.apply("late.yaml", pod("late", idle))
	n.wait("late", "waiting", func(p *corev1.Pod) bool {
		return p != nil && p.Status.Phase == corev1.PodPending && p.Status.Reason == "Evicted"
	})
}

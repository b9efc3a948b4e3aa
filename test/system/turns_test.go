package system

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func after(name, others, spec string) string {
	return strings.Replace(pod(name, spec), "{name: "+name, "{annotations: {berth.node/after: '"+others+"'}, name: "+name,
		1)
}

func held(reason, message string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return p != nil && p.Status.Reason == reason && strings.Contains(p.Status.Message, message)
	}
}

// TestStaticPodsInOrder starts pods after others, also after a restart of the agent, and names those that never could.
func TestStaticPodsInOrder(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("web.yaml", after("web", "default/db=Ready, cache", sleeping))
	n.wait("web", "waiting for its turn", held("NotItsTurn", "default/db-node is ready, which no manifest asks for"))
	n.apply("cache.yaml", pod("cache", sleeping))
	n.apply("db.yaml", pod("db", strings.Replace(sleeping, "containers: [{",
		"containers: [{readinessProbe: {exec: {command: [test, -e, /ready]}, periodSeconds: 1}, ", 1)))
	n.waitPhase("db", corev1.PodRunning)
	n.wait("web", "waiting for the other to be ready", held("NotItsTurn", "the pod starts when default/db-node is ready"))
	if n.pod("web").Status.StartTime != nil && len(n.pod("web").Status.ContainerStatuses) > 0 &&
		n.pod("web").Status.ContainerStatuses[0].State.Running != nil {
		t.Error("it runs before its turn")
	}
	n.sh("db", "touch /ready")
	before := n.waitReady("web")

	// What has started does not wait again, nor does it after a restart of the agent.
	n.sh("db", "rm /ready")
	n.wait("db", "unready", func(p *corev1.Pod) bool { return p != nil && !isReady(p) })
	n.stop()
	n.start()
	n.requireSame(before, n.waitReady("web"))

	n.apply("a.yaml", after("a", "b", sleeping))
	n.apply("b.yaml", after("b", "default/a=Ready", sleeping))
	n.wait("b", "told of the circle",
		held("NotItsTurn", "pods wait for each other (default/b-node after default/a-node after default/b-node)"))
	n.apply("b.yaml", pod("b", sleeping))
	n.waitReady("a")
	n.apply("c.yaml", after("c", "x/y/z", sleeping))
	n.logHas("c.yaml", "metadata.annotations[berth.node/after]", "must be NAMESPACE/NAME")
	for _, name := range []string{"web", "db", "cache", "a", "b"} {
		n.remove(name + ".yaml")
		n.waitGone(name)
	}
	n.requireNoPods()
}

// TestUpdateThatCannotRun changes a pod into one that the node would not take: the old one goes on until the new one
// can come.
func TestUpdateThatCannotRun(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	with := func(port int) string {
		return strings.Replace(sleeping, "containers: [{",
			fmt.Sprintf("containers: [{ports: [{containerPort: 80, hostPort: %d}], ", port), 1)
	}
	n.apply("other.yaml", pod("other", with(18301)))
	n.waitReady("other")
	n.apply("web.yaml", pod("web", with(18302)))
	before := n.waitReady("web")
	stays := func(why string) {
		t.Helper()
		n.eventually("the update to be refused for "+why, func() error {
			if out := n.must("events"); !strings.Contains(out, "the pod that runs is not replaced: "+why) {
				return os.ErrNotExist
			}
			return nil
		})
		n.requireSame(before, n.waitReady("web"))
	}
	n.apply("web.yaml", pod("web", "\n  securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}"+with(18302)))
	stays(`forbidden sysctl: "kernel.msgmax"`)
	n.apply("web.yaml", pod("web", "\n  priorityClassName: none"+with(18302)))
	stays("no PriorityClass with name none")
	n.apply("web.yaml", pod("web", with(18301)))
	stays("host port 18301/TCP is in use by pod default/other-node")
	n.remove("other.yaml")
	n.wait("web", "replaced", func(p *corev1.Pod) bool { return isReady(p) && p.UID != before.UID })
	// Its own ports are free when it comes.
	second := n.waitReady("web")
	n.apply("web.yaml", pod("web", strings.Replace(with(18301), "1000000", "999999", 1)))
	n.wait("web", "replaced again", func(p *corev1.Pod) bool { return isReady(p) && p.UID != second.UID })
	n.remove("web.yaml")
	n.waitGone("web")
	n.requireNoPods()
}

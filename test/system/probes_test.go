package system

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// asked is a pod with probes of every kind that busybox can answer; what they say is a matter of files in its
// container.
const asked = `apiVersion: v1
kind: Pod
metadata: {name: asked, annotations: {berth.node/probe-period-ms: "200"}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: berth.test/busybox:1
    command: [sh, -c, "mkdir /www; touch /www/ok; httpd -p 8080 -h /www; sleep 0.3; touch /started; exec sleep 1000"]
    ports: [{name: web, containerPort: 8080}]
    startupProbe: {exec: {command: [test, -e, /started]}, timeoutSeconds: 20, failureThreshold: 1000}
    livenessProbe: {tcpSocket: {port: 8080}, timeoutSeconds: 20, failureThreshold: 2}
    readinessProbe: {httpGet: {path: /ok, port: web, httpHeaders: [{name: X-A, value: b}]}, timeoutSeconds: 20, failureThreshold: 2}
  - name: beside
    image: berth.test/busybox:1
    command: [sleep, "1000"]
    readinessProbe: {exec: {command: [sh, -c, "test -e /ready || { sleep 1000 & sleep 1000; }"]}, timeoutSeconds: 5, failureThreshold: 1}
`

// TestProbes runs probes on a real pod: what they say becomes its readiness, and a container that does not live is
// restarted. A killed agent changes neither.
func TestProbes(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("asked.yaml", asked)
	ready := func(main, beside bool) *corev1.Pod {
		t.Helper()
		return n.wait("asked", fmt.Sprintf("main ready %t, beside ready %t", main, beside), func(p *corev1.Pod) bool {
			return containerState(p, "main").Ready == main && containerState(p, "beside").Ready == beside &&
				containerState(p, "main").State.Running != nil
		})
	}
	ready(true, false)
	// The command that is over its time is ended with what it has started.
	n.eventually("a failed probe to be told", func() error {
		if out := n.must("events"); !hasLine(out, "Unhealthy", "Readiness probe failed: command timed out") {
			return fmt.Errorf("events:\n%s", out)
		}
		return nil
	})
	n.must("exec", "asked", "-c", "beside", "--", "touch", "/ready")
	before := ready(true, true)
	n.eventually("what timed-out commands have started to be gone", func() error {
		if n.peer != nil && n.peer.Name == "containerd" {
			return nil // it ends the command alone
		}
		if out := n.must("exec", "asked", "-c", "beside", "--", "ps"); countLines(out, "sleep 1000") != 1 {
			return fmt.Errorf("processes:\n%s", out)
		}
		return nil
	})
	of := func(kind, result string) map[string]string {
		return map[string]string{
			"probe_type": kind, "result": result, "container": "main", "pod": "asked-node",
			"namespace": "default", "pod_uid": string(before.UID),
		}
	}
	for _, kind := range []string{"Readiness", "Liveness"} {
		if got := n.metrics("/metrics/probes").get(t, "prober_probe_total", of(kind, "successful")); got < 1 {
			t.Errorf("%f successful %s probes", got, kind)
		}
	}
	n.must("exec", "asked", "-c", "main", "--", "rm", "/www/ok")
	ready(false, true)
	if got := n.metrics("/metrics/probes").get(t, "prober_probe_total", of("Readiness", "failed")); got < 1 {
		t.Errorf("%f failed readiness probes", got)
	}
	n.must("exec", "asked", "-c", "main", "--", "touch", "/www/ok")
	ready(true, true)

	n.kill()
	n.start()
	after := n.wait("asked", "known again",
		func(p *corev1.Pod) bool { return containerState(p, "main").State.Running != nil })
	if s := containerState(after, "main"); s.ContainerID != containerState(before, "main").ContainerID ||
		s.RestartCount != 0 || !s.Ready || !*s.Started {
		t.Errorf("after the agent's restart main is %+v", s)
	}

	// The server has a child for each connection, which may have ended before its signal comes, and then killall fails.
	n.must("exec", "asked", "-c", "main", "--", "sh", "-c", "killall httpd || true")
	n.wait("asked", "restarted and ready again", func(p *corev1.Pod) bool {
		s := containerState(p, "main")
		return s.RestartCount == 1 && s.Ready && containerState(p, "beside").RestartCount == 0
	})
	if out := n.must("events"); !hasLine(out, "Killing", "Container main failed liveness probe, will be restarted") {
		t.Errorf("events:\n%s", out)
	}
	n.remove("asked.yaml")
	n.waitGone("asked")
	n.eventually("the metrics of its probes to go", func() error {
		if _, ok := n.metrics("/metrics/probes").find("prober_probe_total", map[string]string{"pod": "asked-node"}); ok {
			return errors.New("they are there")
		}
		return nil
	})
	n.requireNoPods()
}

// hasLine says whether a line has all the words.
func hasLine(text string, words ...string) bool {
	for line := range strings.Lines(text) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return true
		}
	}
	return false
}

func countLines(text, word string) (n int) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			n++
		}
	}
	return n
}

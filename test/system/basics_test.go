package system

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// web is a pod with a web server that answers with the pod's own name.
const web = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: httpd
    image: ` + image + `
    command: [sh, -c, 'mkdir -p /www && hostname > /www/index.html && echo serving && exec httpd -f -p 8080 -h /www']
    ports: [{containerPort: 8080}]
`

// TestFirstPod is a person's first five minutes: a manifest, an address, logs, a shell, and nothing left after the file
// is gone.
func TestFirstPod(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.requireNoPods()
	n.apply("web.yaml", web)
	p := n.waitReady("web")

	get := func() string {
		resp, err := http.Get("http://" + p.Status.PodIP + ":8080/")
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return strings.TrimSpace(string(b))
	}
	n.eventually("the node to reach the pod's web server", func() error {
		if got := get(); got != "web-node" {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	n.waitLog("web", "serving\n")
	if got := n.must("exec", "web", "--", "hostname"); got != "web-node\n" {
		t.Errorf("exec hostname: got %q", got)
	}
	if got := n.sh("web", "ip -4 addr show eth0"); !strings.Contains(got, p.Status.PodIP) {
		t.Errorf("the pod's eth0 does not have %s:\n%s", p.Status.PodIP, got)
	}
	if _, _, code := n.berth("exec", "web", "--", "sh", "-c", "exit 7"); code != 7 {
		t.Errorf("exec's exit code: got %d, want 7", code)
	}
	out, _, _ := n.berthIn(strings.NewReader("through stdin\n"), "exec", "-i", "web", "--", "cat")
	if out != "through stdin\n" {
		t.Errorf("exec -i: got %q", out)
	}
	if got := n.must("pods"); !regexp.MustCompile(`(?m)^web-node +1/1 +Running +0 +\S+`).MatchString(got) {
		t.Errorf("berth pods:\n%s", got)
	}
	if got := n.must("describe", "web"); !strings.Contains(got, "Started") || !strings.Contains(got, p.Status.PodIP) {
		t.Errorf("berth describe:\n%s", got)
	}
	if got := n.must("describe", "--timing", "web"); !regexp.MustCompile(`\d+(\.\d+)? ?ms`).MatchString(got) {
		t.Errorf("berth describe --timing:\n%s", got)
	}
	if out, errs, code := n.berth("rm", "web"); code == 0 || !strings.Contains(out+errs, n.Dir+"/manifests/web.yaml") {
		t.Errorf("berth rm does not name the file: code %d, %s%s", code, out, errs)
	}
	n.requireCgroup(p, "httpd")

	n.remove("web.yaml")
	n.waitGone("web")
	n.requireNoPods()
}

// waitLog waits until the log of a pod is just that: a container that runs need not have written yet.
func (n *Node) waitLog(pod, want string) {
	n.t.Helper()
	n.eventually("the log of "+pod, func() error {
		if got := n.must("logs", pod); got != want {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
}

// requireCgroup checks that the container's process is where its QoS class says, by the kernel's word.
func (n *Node) requireCgroup(p *corev1.Pod, container string) {
	n.t.Helper()
	for _, s := range p.Status.ContainerStatuses {
		if s.Name != container {
			continue
		}
		if group := n.groupOf(p, s); len(n.processesIn(group)) == 0 {
			n.t.Errorf("no process in cgroup %s", group)
		}
		return
	}
	n.t.Errorf("no container %s in the status", container)
}

func (n *Node) processesIn(cgroup string) []string {
	files, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroup + "/cgroup.procs")
	files = append(files, "/sys/fs/cgroup"+cgroup+"/cgroup.procs")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && len(b) > 0 {
			return strings.Fields(string(b))
		}
	}
	return nil
}

// TestPodsReachEachOther has two pods talk to each other, the node to both and both to the node.
func TestPodsReachEachOther(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("a.yaml", web+"---"+strings.ReplaceAll(web, "name: web", "name: other"))
	a, b := n.waitReady("web"), n.waitReady("other")
	n.eventually("pod to reach pod", func() error {
		out, e, code := n.berth("exec", "web", "--", "wget", "-qO-", "http://"+b.Status.PodIP+":8080/")
		if code != 0 || out != "other-node\n" {
			return fmt.Errorf("%d %q %q", code, out, e)
		}
		return nil
	})
	gateway := n.sh("web", "ip route | awk '/default/ {print $3}'")
	n.must("exec", "web", "--", "ping", "-c1", "-W5", strings.TrimSpace(gateway))
	if a.Status.PodIP == b.Status.PodIP || a.Status.HostIP == "" {
		t.Errorf("addresses: %q, %q, host %q", a.Status.PodIP, b.Status.PodIP, a.Status.HostIP)
	}
}

// TestStopLeavesPodsRunning stops and starts the agent: the container must not notice, and its logs must be whole.
func TestStopLeavesPodsRunning(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("ticker.yaml", pod("ticker", `
  containers:
  - name: main
    image: `+image+`
    command: [sh, -c, 'i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done']`))
	before := n.waitReady("ticker")
	n.stop()
	if left := n.processes(); len(left) == 0 {
		t.Fatal("stopping the agent stopped the pod")
	}
	n.start()
	after := n.waitReady("ticker")
	n.requireSame(before, after)
	var lines []string
	n.eventually("new lines", func() error {
		lines = strings.Split(strings.TrimSpace(n.must("logs", "ticker")), "\n")
		if len(lines) < 50 {
			return fmt.Errorf("%d lines", len(lines))
		}
		return nil
	})
	for i, l := range lines {
		if l != fmt.Sprintf("line %d", i+1) {
			t.Fatalf("log line %d is %q: a line was lost or doubled", i+1, l)
		}
	}
}

// requireSame checks that no container was started anew between the two looks at a pod.
func (n *Node) requireSame(before, after *corev1.Pod) {
	n.t.Helper()
	if before.UID != after.UID || before.Status.PodIP != after.Status.PodIP {
		n.t.Errorf("the pod changed: uid %s to %s, address %s to %s", before.UID, after.UID, before.Status.PodIP,
			after.Status.PodIP)
	}
	for i, s := range before.Status.ContainerStatuses {
		if a := after.Status.ContainerStatuses[i]; a.ContainerID != s.ContainerID || a.RestartCount != s.RestartCount {
			n.t.Errorf("container %s was started anew: %s, %d restarts; before %s, %d", s.Name, a.ContainerID, a.RestartCount,
				s.ContainerID, s.RestartCount)
		}
	}
}

// pod makes a manifest of a name and the lines of its spec.
func pod(name, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  terminationGracePeriodSeconds: 1" + spec +
		"\n"
}

// TestTwoAgents runs two agents side by side and purges one: the other's pod must not notice.
func TestTwoAgents(t *testing.T) {
	t.Parallel()
	a, b := startNode(t), startNode(t)
	a.apply("web.yaml", web)
	b.apply("web.yaml", web)
	a.waitReady("web")
	before := b.waitReady("web")
	a.kill()
	a.cmd = nil
	// A process that is killed at a bad moment leaves what it was making.
	run := filepath.Join(a.Dir, "run")
	for _, name := range []string{"berth.sock.new", "cgroups.json.new", "cri.sock.new/s"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(run, name)), 0o700),
			os.WriteFile(filepath.Join(run, name), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(bin("berth"),
		append([]string{"purge", "--yes"}, a.dirArgs()...)...).CombinedOutput(); err != nil {
		t.Fatalf("purge: %v\n%s", err, out)
	}
	if left, err := os.ReadDir(run); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the run directory stays with %v, %v", left, err)
	}
	if left := a.leftovers(); len(left) > 0 {
		t.Logf("still going away: %q", left)
	}
	b.requireSame(before, b.waitReady("web"))
	b.must("exec", "web", "--", "wget", "-qO-", "http://127.0.0.1:8080/")
	if out, _, code := a.berth("pods"); code == 0 {
		t.Errorf("berth pods without an agent: exit code 0, %s", out)
	}
}

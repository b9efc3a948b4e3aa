package system

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestJoin is a node's first minutes in a cluster: it joins with a token, runs a pod of the API with all that the
// admission has put into it, shows it through the API server, and gives it back.
func TestJoin(t *testing.T) {
	t.Parallel()
	m := joined(t, "--node-labels=zone.example/a=b", "--register-with-taints=only.example/x=y:NoSchedule")
	node := m.nodeReady()
	if node.Labels["zone.example/a"] != "b" || len(node.Spec.Taints) == 0 || node.Status.NodeInfo.KubeletVersion == "" ||
		node.Status.Capacity.Cpu().IsZero() || node.Status.Allocatable.Pods().IsZero() {
		t.Errorf("node: %+v", node)
	}
	m.eventually("the node's lease", func() error { // which another goroutine writes than the one that says ready
		lease, err := m.plane.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), m.name, metav1.GetOptions{})
		if err == nil && *lease.Spec.HolderIdentity != m.name {
			err = fmt.Errorf("it is %v", lease)
		}
		return err
	})

	configs := m.plane.Client.CoreV1().ConfigMaps("default")
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"color": "red"}}
	if _, err := configs.Create(t.Context(), settings, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made := m.create(m.bound("web", func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "settings", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}},
		}})
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "settings", MountPath: "/settings"}}
	}))
	p := m.apiReady("web")
	if p.Status.PodIP == "" || p.Status.HostIP == "" || p.Status.ContainerStatuses[0].State.Running == nil {
		t.Errorf("status: %+v", p.Status)
	}
	m.requireCgroup(p, "main")
	got, err := m.execute("web", "sh", "-c", "cat /settings/color; echo; cd /var/run/secrets/kubernetes.io/serviceaccount && "+
		"cut -d. -f1 token | head -c 3; echo; cat namespace; head -n 1 ca.crt; echo $KUBERNETES_SERVICE_PORT")
	if want := "red\neyJ\ndefault-----BEGIN CERTIFICATE-----\n443\n"; err != nil || got != want {
		t.Errorf("in the pod: %q, %v, want %q", got, err, want)
	}
	m.eventually("the container's first words", func() error {
		logs, err := m.plane.Client.CoreV1().Pods("default").GetLogs("web", &corev1.PodLogOptions{}).DoRaw(t.Context())
		if err != nil || string(logs) != "begun\n" {
			return fmt.Errorf("logs: %q, %w", logs, err)
		}
		return nil
	})
	settings.Data["color"] = "blue"
	if _, err := configs.Update(t.Context(), settings, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	m.eventually("the pod to see the change", func() error {
		if got, err := m.execute("web", "cat", "/settings/color"); err != nil || got != "blue" {
			return fmt.Errorf("%q, %w", got, err)
		}
		return nil
	})
	m.requireEvents(made, "Pulled", "Created", "Started")

	m.delete("web", nil)
	m.apiGone("web")
	m.requireNoPods()
}

// requireEvents waits until the API server has events of a pod for each of the reasons.
func (m *member) requireEvents(p *corev1.Pod, reasons ...string) {
	m.t.Helper()
	m.eventually("events in the API", func() error {
		list, err := m.plane.Client.CoreV1().Events("default").List(m.t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.uid=" + string(p.UID),
		})
		if err != nil {
			return err
		}
		for _, r := range reasons {
			if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Reason == r }) {
				return fmt.Errorf("no event %s among %d", r, len(list.Items))
			}
		}
		return nil
	})
}

// TestMirrorPods: static pods have a copy in the API, which is made again when somebody deletes it, and goes with its
// pod.
func TestMirrorPods(t *testing.T) {
	t.Parallel()
	m := joined(t)
	m.nodeReady()
	m.apply("web.yaml", web)
	first := m.apiReady("web-node")
	if first.Annotations[corev1.MirrorPodAnnotationKey] == "" || first.Spec.NodeName != m.name || len(first.OwnerReferences) != 1 {
		t.Errorf("mirror pod: %+v", first.ObjectMeta)
	}
	here := m.waitReady("web")
	m.delete("web-node", new(int64(0)))
	again := m.follow("web-node", "made again", func(p *corev1.Pod) bool { return isReady(p) && p.UID != first.UID })
	if now := m.waitReady("web"); now.Status.ContainerStatuses[0].ContainerID != here.Status.ContainerStatuses[0].ContainerID {
		t.Error("the pod was started again")
	}
	if again.Status.PodIP != here.Status.PodIP {
		t.Errorf("the copy has address %s, the pod %s", again.Status.PodIP, here.Status.PodIP)
	}
	m.remove("web.yaml")
	m.apiGone("web-node")
	m.requireNoPods()
}

// TestAPIServerAway: pods go on while the API server is gone or does not answer, what happens to them is told when it
// is back, and a restart of the agent is no event in their life.
func TestAPIServerAway(t *testing.T) {
	t.Parallel()
	m := joined(t)
	m.nodeReady()
	m.create(m.bound("web"))
	before := m.apiReady("web")
	m.kill()
	m.start()
	m.plane.Kill()
	// The container ends and is started again while nobody can be told.
	pid := m.processesIn(m.groupOf(before, before.Status.ContainerStatuses[0]))
	if len(pid) == 0 {
		t.Fatal("the container has no process")
	}
	m.plane.Again(t)
	if p := m.waitReady("web"); p.UID != before.UID || p.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the pod was started again: %+v", p.Status.ContainerStatuses)
	}
	thaw := m.plane.Freeze(t)
	m.berth("exec", "web", "--", "sh", "-c", "kill 1") // it may be gone before the command has ended
	m.wait("web", "restarted", func(p *corev1.Pod) bool {
		return isReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	thaw()
	m.follow("web", "restarted, in the API", func(p *corev1.Pod) bool {
		return isReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	m.delete("web", nil)
	m.apiGone("web")
	m.requireNoPods()
}

// TestNodeAPI: who the API server knows and lets may ask the node, and nobody else.
func TestNodeAPI(t *testing.T) {
	t.Parallel()
	m := joined(t)
	m.nodeReady()
	m.create(m.bound("web"))
	m.apiReady("web")
	raw := func(path string) (string, error) {
		b, err := m.plane.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + m.name + "/proxy" + path).DoRaw(t.Context())
		return string(b), err
	}
	for path, want := range map[string]string{
		"/healthz": "ok", "/pods": `"web"`, "/stats/summary": `"nodeName"`, "/metrics/resource": "container_cpu_usage_seconds_total",
		"/configz": "kubeletconfig",
	} {
		if got, err := raw(path); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %.200s, %v, want %q in it", path, got, err, want)
		}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	resp, err := client.Get(fmt.Sprintf("https://127.0.0.1:%s/pods", m.port()))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without credentials: %s %.200s", resp.Status, body)
	}
}

// port is the one that the agent was given.
func (m *member) port() string {
	for _, a := range m.args {
		if p, ok := strings.CutPrefix(a, "--port="); ok {
			return p
		}
	}
	m.t.Fatal(errors.New("the agent has no port"))
	return ""
}

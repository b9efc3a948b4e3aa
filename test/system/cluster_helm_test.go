package system

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// helmTry runs Helm with the administrator's kubeconfig, and returns what it writes and whether it went well.
func (m *member) helmTry(args ...string) (string, error) {
	m.t.Helper()
	return m.command("", filepath.Join(peerPrograms(m.t, "test-ecosystem"), "helm"), args...)
}

// helm requires that a command of Helm goes well.
func (m *member) helm(args ...string) string {
	m.t.Helper()
	out, err := m.helmTry(args...)
	if err != nil {
		now, _ := m.command("", filepath.Join(peerPrograms(m.t, "test-ecosystem"), "kubectl"), "get", "pods,jobs,events", "-A", "-o", "wide")
		m.t.Fatalf("helm %s: %v\n%s\n%s", strings.Join(args, " "), err, out, now)
	}
	return out
}

// history are the revisions of a release, and what has become of each.
func (m *member) history(release string) []string {
	m.t.Helper()
	var all []struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal([]byte(m.helm("history", release, "-o", "json")), &all); err != nil {
		m.t.Fatal(err)
	}
	var out []string
	for _, r := range all {
		out = append(out, r.Status)
	}
	return out
}

// store is the release of the chart of our own, whose pods are on the node.
type store struct{ *member }

// says requires that each pod of the stateful set has been started with a greeting, and returns the password that it
// has.
func (s store) says(greeting string, pods ...string) (password string) {
	s.t.Helper()
	for _, name := range pods {
		out := s.kubectl("exec", name, "-c", "store", "--", "sh", "-c", "echo $(cat /data/greeting) $PASSWORD")
		said, has, _ := strings.Cut(strings.TrimSpace(out), " ")
		if said != greeting || has == "" || password != "" && has != password {
			s.t.Errorf("pod %s says %q, want %q and one password", name, out, greeting)
		}
		password = has
	}
	return password
}

// TestHelm has a chart with what charts have installed, tested, upgraded, rolled back and uninstalled by Helm, as
// published: each waits until all that it has written is so.
func TestHelm(t *testing.T) {
	t.Parallel()
	peerPrograms(t, "test-ecosystem")
	m := joined(t)
	chart, err := filepath.Abs("../cluster/chart")
	if err != nil {
		t.Fatal(err)
	}
	s := store{m}
	wait := []string{"--wait", "--wait-for-jobs", "--timeout=2m"}
	with := func(args ...string) []string { return append(args, wait...) }

	if out, err := m.helmTry("install", "store", chart, "--set=image=", "--dry-run=server"); err == nil || !strings.Contains(out, "minLength") {
		t.Errorf("values that the chart does not take: %v\n%s", err, out)
	}
	if out := m.helm(with("install", "store", chart, "--set=image="+image)...); !strings.Contains(out, "store says hello.") {
		t.Errorf("it says %s", out)
	}
	password := s.says("hello", "store-0", "store-1")
	if out := m.helm("test", "store", "--logs"); !strings.Contains(out, "it says hello") {
		t.Errorf("the test says %s", out)
	}
	s.hasAll()
	// Those that are not to stay are gone, and the one that is has ended well.
	if out := m.kubectl("get", "jobs", "-o", "name"); out != "job.batch/store-post-install\n" {
		t.Errorf("there are the jobs %s", out)
	}

	m.helm(with("upgrade", "store", chart, "--reuse-values", "--set=greeting=ahoy", "--set=store.replicas=3", "--set=widgets.first=null")...)
	if got := s.says("ahoy", "store-0", "store-1", "store-2"); got != password {
		t.Errorf("the password was %s and is %s", password, got)
	}
	if out := m.kubectl("get", "widgets", "-o", "name"); out != "widget.store.example.com/second\n" {
		t.Errorf("there are the widgets %s", out)
	}
	if out, err := m.helmTry(with("upgrade", "store", chart, "--reuse-values", "--set=failOnUpgrade=true", "--set=greeting=nothing")...); err == nil {
		t.Errorf("an upgrade whose hook fails: %s", out)
	}
	// One whose pods never become ready is taken back.
	out, err := m.helmTry("upgrade", "store", chart, "--reuse-values", "--set=front.path=/none", "--set=failOnUpgrade=false",
		"--rollback-on-failure", "--wait", "--timeout=30s")
	if err == nil {
		t.Errorf("an upgrade to what never is ready: %s", out)
	}
	m.kubectl("rollout", "status", "deployment/store-front", "--timeout="+limit.String())
	if out := m.kubectl("get", "deployment", "store-front", "-o", "yaml"); strings.Contains(out, "/none") {
		t.Errorf("what is taken back has %s", out)
	}
	m.awaits("statefulset/store", "jsonpath={.status.readyReplicas}=3")
	s.says("ahoy", "store-0", "store-1", "store-2")
	m.helm(with("rollback", "store", "1")...)
	s.says("hello", "store-0", "store-1")
	if out := m.kubectl("get", "widgets", "-o", "name"); strings.Count(out, "\n") != 2 {
		t.Errorf("there are the widgets %s", out)
	}
	got := strings.Join(m.history("store"), " ")
	if !strings.HasPrefix(got, "superseded superseded failed failed") || !strings.HasSuffix(got, "deployed") {
		t.Errorf("the history is %s", got)
	}

	// Helm's other way to wait takes what it has not been told of yet for gone (github.com/helm/helm/issues/32261).
	m.helm("uninstall", "store", "--cascade=foreground", "--wait=legacy", "--timeout=2m")
	s.nothingLeft()
	m.kubectl("get", "customresourcedefinition", "widgets.store.example.com")
	m.kubectl("delete", "jobs,pods", "--all")
	m.requireNoPods()
}

// nothingLeft requires that what the release had is gone, and what it owned: that goes before its owners.
func (s store) nothingLeft() {
	s.t.Helper()
	out := s.kubectl("get", "all,configmap,secret,serviceaccount,role,rolebinding,pdb,widgets", "-o", "name",
		"-l", "app.kubernetes.io/instance=store")
	for line := range strings.Lines(out) {
		// The jobs and the pod of hooks that are to stay are theirs who have asked for it.
		if !strings.Contains(line, "/store-post-") && !strings.Contains(line, "/store-test") {
			s.t.Errorf("it has left %s", line)
		}
	}
}

// hasAll requires that what the chart makes does what it is for.
func (s store) hasAll() {
	s.t.Helper()
	s.awaits("horizontalpodautoscaler/store-front", "condition=ScalingActive")
	s.awaits("poddisruptionbudget/store-front", "jsonpath={.status.disruptionsAllowed}=1")
	front, err := s.plane.Client.CoreV1().Pods("default").List(s.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=front"})
	if err != nil || len(front.Items) != 2 {
		s.t.Fatalf("there are %d pods, %v", len(front.Items), err)
	}
	for _, p := range front.Items {
		if p.Status.Phase != corev1.PodRunning || p.Spec.NodeName != s.name {
			s.t.Errorf("pod %s is %s on %q", p.Name, p.Status.Phase, p.Spec.NodeName)
		}
	}
	if out := s.kubectl("auth", "can-i", "patch", "widgets/status", "--as=system:serviceaccount:default:store"); out != "yes\n" {
		s.t.Errorf("the account may: %s", out)
	}
	if out := s.kubectl("get", "wi", "second", "-o", "jsonpath={.spec.color}"); out != "grey" {
		s.t.Errorf("the widget is %q", out)
	}
}

package control

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// inTime is how long kubectl waits.
var inTime = fmt.Sprint("--timeout=", patience)

// kubectl runs kubectl against the control plane, where the machine has one.
func (p *plane) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return p.kubectlWith(t, "", args...)
}

// apply is kubectl apply of a text.
func (p *plane) apply(t *testing.T, text string) {
	t.Helper()
	p.kubectlWith(t, text, "apply", "-f", "-")
}

func (p *plane) kubectlWith(t *testing.T, input string, args ...string) string {
	t.Helper()
	program := "../../bin/cluster/kubectl"
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not built: make kubectl-compare", program)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	c := exec.CommandContext(ctx, program, append([]string{"--kubeconfig", filepath.Join(p.dir, "admin.kubeconfig")}, args...)...)
	c.Stdin = strings.NewReader(input)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestKubectlRollout does with kubectl what people do with it.
func TestKubectlRollout(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	p.kubectl(t, "version", "--client")
	p.hollow(t, "a", "b")
	p.equipped(t, "default")
	says := func(want string, args ...string) {
		t.Helper()
		if got := p.kubectl(t, args...); !strings.Contains(got, want) {
			t.Errorf("kubectl %v says %q", args, got)
		}
	}
	p.kubectl(t, "create", "deployment", "web", "--image=one", "--replicas=3")
	says("successfully rolled out", "rollout", "status", "deployment/web", inTime)
	p.kubectl(t, "set", "image", "deployment/web", "one=two")
	p.kubectl(t, "annotate", "deployment/web", "kubernetes.io/change-cause=two is better")
	says("successfully rolled out", "rollout", "status", "deployment/web", inTime)
	until(t, "the cause is in the history", func() error {
		if got := p.kubectl(t, "rollout", "history", "deployment/web"); !strings.Contains(got, "two is better") {
			return errors.New(got)
		}
		return nil
	})
	p.kubectl(t, "rollout", "undo", "deployment/web")
	says("successfully rolled out", "rollout", "status", "deployment/web", inTime)
	says("one", "get", "deployment/web", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	p.kubectl(t, "rollout", "restart", "deployment/web")
	says("successfully rolled out", "rollout", "status", "deployment/web", inTime)
	p.kubectl(t, "scale", "deployment/web", "--replicas=5")
	says("condition met", "wait", "--for=condition=Available", "deployment/web", inTime)
	says("5", "wait", "--for=jsonpath={.status.availableReplicas}=5", "deployment/web", inTime, "-o", "jsonpath={.status.availableReplicas}")

	for _, kind := range []string{"StatefulSet", "DaemonSet"} {
		name := strings.ToLower(kind) + "/s"
		p.apply(t, `{"apiVersion":"apps/v1","kind":"`+kind+`","metadata":{"name":"s"},"spec":{"selector":{"matchLabels":{"app":"`+kind+`"}},
			"template":{"metadata":{"labels":{"app":"`+kind+`"}},"spec":{"containers":[{"name":"c","image":"one"}]}}}}`)
		says("", "rollout", "status", name, inTime)
		p.kubectl(t, "set", "image", name, "c=two")
		says("", "rollout", "status", name, inTime)
		says("2", "rollout", "history", name)
		p.kubectl(t, "rollout", "undo", name)
		says("", "rollout", "status", name, inTime)
		says("one", "get", name, "-o", "jsonpath={.spec.template.spec.containers[0].image}")
		says("3", "rollout", "history", name)
	}
}

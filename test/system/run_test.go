package system

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestInitAndRun is a pod without a manifest of one's own: berth run writes one and waits, says why when it fails, and
// refuses what is there; what berth init prints is a manifest as it stands.
func TestInitAndRun(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	if err := os.WriteFile(filepath.Join(n.Dir, "index.html"), []byte("from the node"), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"run", image, "--name", "web", "--port", "8080", "--volume", n.Dir + ":/www:ro", "--volume", "data:/data", "--env", "WHO=me and you",
		"--cpu", "200m", "--memory", "64Mi", "--command", "--", "sh", "-c", "trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait",
	}
	path := n.Dir + "/manifests/web.yaml"
	out := n.must(args...)
	p := n.pod("web")
	if !strings.Contains(out, "is ready at "+p.Status.PodIP) || !strings.Contains(out, "rm "+path) || !isReady(p) {
		t.Errorf("it says\n%s", out)
	}
	n.eventually("the pod to answer", func() error { // it has no probe: it is ready as soon as it runs
		resp, err := http.Get("http://" + p.Status.PodIP + ":8080/index.html")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if string(body) != "from the node" {
			return fmt.Errorf("it answers %q", body)
		}
		return nil
	})
	if got := n.sh("web", "touch /data/x && echo $WHO; touch /www/y"+" || echo no"); got != "me and you\nno\n" {
		t.Errorf("in the pod: %q", got)
	}

	if _, errs, code := n.berth(args...); code != 1 || !strings.Contains(errs, "--replace") {
		t.Errorf("the same again: %d, %s", code, errs)
	}
	args = append([]string{"run", image, "--replace", "--env", "OTHER=1"}, args[2:]...)
	n.must(args...)
	if q := n.pod("web"); q.UID == p.UID || !isReady(q) {
		t.Errorf("the pod was not replaced: %+v", q.Status)
	}

	// What goes wrong is said, and not waited for.
	_, errs, code := n.berth("run", "127.0.0.1:1/nosuch:1", "--name", "bad")
	if code != 1 || !strings.Contains(errs, "nosuch") || !strings.Contains(errs, "berth describe default/bad") {
		t.Errorf("an image that is not there: %d, %s", code, errs)
	}
	out = n.must("run", image, "--name", "job", "--restart", "Never", "--", "true")
	if !strings.Contains(out, "has ended well") && !strings.Contains(out, "is ready") {
		t.Errorf("a job: %s", out)
	}
	n.waitPhase("job", corev1.PodSucceeded)

	// As printed it goes to where manifests are.
	n.apply("second.yaml", n.must("init", "second", "--image", image, "--command", "--", "sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"))
	n.waitReady("second")
	for _, name := range []string{"web", "bad", "job", "second"} {
		n.remove(name + ".yaml")
	}
	n.waitGone("web")
	n.waitGone("second")
	n.requireNoPods()
}

package system

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// TestRefusedIsSeen writes manifests that are refused, and an edit that is not taken: the list, the description and the
// events tell.
func TestRefusedIsSeen(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("web.yaml", pod("web", sleeping))
	before := n.waitReady("web")
	told := newHeard("new.yaml")
	events := exec.Command(bin("berth"), "--run-dir="+n.Dir+"/run", "events", "-w")
	events.Stdout = told
	if err := events.Start(); err != nil {
		t.Fatal(err)
	}
	defer events.Wait()
	defer events.Process.Kill()

	n.apply("new.yaml", pod("new", "\n  containers: [{name: main}]"))
	n.apply("torn.yaml", "{{{")
	n.apply("web.yaml", strings.Replace(pod("web", sleeping), "image:", "imag:", 1))
	says := func(args []string, words ...string) {
		t.Helper()
		n.eventually(fmt.Sprintf("berth %s to say %q", strings.Join(args, " "), words), func() error {
			out := strings.Join(strings.Fields(n.must(args...)), " ")
			for _, w := range words {
				if !strings.Contains(out, w) {
					return fmt.Errorf("no %q in %s", w, out)
				}
			}
			return nil
		})
	}
	says([]string{"pods"}, "new-node 0/0 Refused", "torn.yaml 0/0 Refused", "web-node 1/1 Running,EditRefused")
	says([]string{"describe", "new"}, "Manifest: "+n.Dir+"/manifests/new.yaml",
		"Problem: "+n.Dir+"/manifests/new.yaml: line", "spec.containers[0].image", "Remedy: mend", "ManifestRefused")
	says([]string{"describe", "web"}, "Problem: "+n.Dir+"/manifests/web.yaml: line", "Remedy: the pod runs on",
		"ManifestRefused")
	says([]string{"describe", "torn"}, "torn.yaml: line 1")
	says([]string{"events"}, "torn.yaml: line 1", "pod/new-node", "pod/web-node")
	<-told.came
	n.requireSame(before, n.waitReady("web"))

	// A restart forgets nothing of it.
	n.kill()
	n.start()
	says([]string{"pods"}, "new-node 0/0 Refused", "web-node 1/1 Running,EditRefused")
	n.requireSame(before, n.waitReady("web"))
	n.apply("web.yaml", pod("web", sleeping))
	n.apply("new.yaml", pod("new", sleeping))
	n.remove("torn.yaml")
	n.waitReady("new")
	says([]string{"events"}, "ManifestInOrder")
	n.eventually("nothing to be refused any more", func() error { // one file is read after the other
		if out := n.must("pods"); strings.Contains(out, "Refused") {
			return errors.New(out)
		}
		return nil
	})
}

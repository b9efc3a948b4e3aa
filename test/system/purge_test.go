package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPurgeAsks purges a node that has been stopped, from where nobody can be asked: nothing is touched without a word
// that it is meant.
func TestPurgeAsks(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("web.yaml", pod("web", sleeping))
	before := n.waitReady("web")
	n.stop()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, in := range map[string]*os.File{"null": null, "none": nil} {
		cmd := exec.Command(bin("berth"), append([]string{"purge"}, n.dirArgs()...)...)
		if in != nil {
			cmd.Stdin = in
		}
		out, _ := cmd.CombinedOutput() // how it ended is asked next
		if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(string(out), "--yes") {
			t.Errorf("%s: exit code %d: %s", name, code, out)
		}
	}
	piped := exec.Command(bin("berth"), append([]string{"purge"}, n.dirArgs()...)...)
	piped.Stdin = strings.NewReader("y\n")
	if out, err := piped.CombinedOutput(); err == nil || !strings.Contains(string(out), "nothing was removed") {
		t.Errorf("an answer that nobody has asked for: %v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(n.Dir, "root")); err != nil {
		t.Error(err)
	}
	n.start()
	n.requireSame(before, n.waitReady("web"))
	n.remove("web.yaml")
	n.waitGone("web")
	n.requireNoPods()
}

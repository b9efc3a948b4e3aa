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
	// The run directory alone says where all else is.
	short := exec.Command(bin("berth"), "--run-dir", filepath.Join(n.Dir, "run"), "purge")
	if out, err := short.CombinedOutput(); err == nil || !strings.Contains(string(out), filepath.Join(n.Dir, "root")) {
		t.Errorf("by the run directory: %v: %s", err, out)
	}
	n.start()
	n.requireSame(before, n.waitReady("web"))
	n.remove("web.yaml")
	n.waitGone("web")
	n.requireNoPods()
}

// TestPurgeByRunDir purges a node whose agent was killed by its run directory alone, which says where all else is.
func TestPurgeByRunDir(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("web.yaml", pod("web", sleeping))
	web := n.waitReady("web")
	group := n.groupOf(web, web.Status.ContainerStatuses[0])
	if len(n.processesIn(group)) == 0 {
		t.Fatalf("nothing runs in %s", group)
	}
	n.kill()
	run := filepath.Join(n.Dir, "run")
	place := filepath.Join(run, "place.json")
	had, err := os.ReadFile(place)
	if err != nil {
		t.Fatal(err)
	}
	write(t, place, string(had[:len(had)/2]))
	purge := []string{"--run-dir", run, "purge", "--yes"}
	if out, err := exec.Command(bin("berth"), purge...).CombinedOutput(); err == nil || !strings.Contains(string(out), "--root-dir") {
		t.Errorf("with half of what it says: %v: %s", err, out)
	}
	if len(n.processesIn(group)) == 0 {
		t.Fatal("the pod was removed by who did not know whose it is")
	}
	write(t, place, string(had))
	if out, err := exec.Command(bin("berth"), purge...).CombinedOutput(); err != nil {
		t.Fatalf("by the run directory: %v: %s", err, out)
	}
	if left := n.processesIn(group); len(left) > 0 {
		t.Errorf("the container has %q", left)
	}
	for _, dir := range []string{"root", "run"} {
		if _, err := os.Stat(filepath.Join(n.Dir, dir)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
}

package system

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestCommandsOfStoppedAgent stops the agent with a signal that it cannot refuse. The kernel goes on taking connections
// for it, and no command waits for what is not going to come. The groups of its pods are there to be looked at.
func TestCommandsOfStoppedAgent(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("web.yaml", pod("web", sleeping))
	n.waitReady("web")

	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var said strings.Builder
	lost := exec.Command(bin("berth"), "--run-dir="+n.Dir+"/run", "exec", "web", "--", "sh", "-c", "yes | head -c 1000000")
	lost.Stdout, lost.Stderr = full, &said
	_ = lost.Run() // how it ended is asked below
	if code := lost.ProcessState.ExitCode(); code != 1 || !strings.HasPrefix(said.String(), "berth: write the command's output") {
		t.Errorf("a command whose output is lost: exit code %d: %s", code, said.String())
	}

	if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"pods", 3, "takes connections"},
		{"pods -w", 3, "takes connections"},
		{"describe web", 3, "takes connections"},
		{"logs -f web", 3, "takes connections"},
		{"exec web -- true", 3, "takes connections"},
		{"images", 3, "takes connections"},
		{"images pull " + image, 3, "takes connections"},
		{"prune", 3, "takes connections"},
		{"cgroups tree", 0, "does not answer"},
		{"cgroups show web", 0, "does not answer"},
		{"cgroups check", 0, "does not answer"},
	} {
		wg.Go(func() {
			out, stderr, code := n.berth(strings.Fields(c.args)...)
			if code != c.code || !strings.Contains(stderr, c.says) {
				t.Errorf("%s: exit code %d: %s%s", c.args, code, stderr, out)
			}
		})
	}
	wg.Wait()
	if err := n.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if out := n.must("exec", "web", "--", "echo", "well"); out != "well\n" {
		t.Errorf("%q", out)
	}
	n.remove("web.yaml")
	n.waitGone("web")
	n.requireNoPods()
}

package system

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestTerminals is what people type with terminals that are not there, or not there in time, and how they leave one.
func TestTerminals(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("web.yaml", pod("web", sleeping))
	n.apply("shell.yaml", pod("shell", "\n  containers: [{name: main, image: "+image+", command: [sh, -c, 'while read "+
		"line; do echo got $line; done'], stdin: true, tty: true}]"))
	n.waitReady("web")
	before := n.waitReady("shell")

	out, stderr, code := n.berthIn(strings.NewReader(""), "exec", "-it", "web", "--", "sh", "-c",
		"test -t 1 && echo terminal || echo none; echo oops >&2")
	if code != 0 || out != "none\n" || !strings.Contains(stderr, "Unable to use a TTY") ||
		!strings.Contains(stderr, "oops") {
		t.Errorf("exec -it without a terminal: %d, %q, %q", code, out, stderr)
	}

	// The input stays open, as a terminal's does, and nothing is typed.
	for range 5 {
		in, typing, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		out, stderr, code := n.berthIn(in, "debug", "web", "-it", "--image="+image, "--", "sh", "-c",
			"echo quick; echo and gone")
		typing.Close()
		in.Close()
		// What came before the terminal follows it, which is said.
		lines := strings.Join(strings.Fields(out), " ")
		late := lines == "and gone quick" && strings.Contains(stderr, "before the terminal was there")
		if code != 0 || lines != "quick and gone" && !late {
			t.Errorf("debug -it of a quick command: %d, %q, %q", code, out, stderr)
		}
	}

	in, typing, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	attached := exec.Command(bin("berth"), "--run-dir="+n.Dir+"/run", "attach", "-i", "shell")
	said := newHeard("got one")
	attached.Stdin, attached.Stdout, attached.Stderr = in, said, said
	if err := attached.Start(); err != nil {
		t.Fatal(err)
	}
	io.WriteString(typing, "one\n")
	<-said.came
	io.WriteString(typing, "\x10\x11")
	if err := attached.Wait(); err != nil { // while the input is open
		t.Errorf("detached: %v, %s", err, said)
	}
	typing.Close()
	in.Close()
	if !strings.Contains(said.String(), "Detached") {
		t.Errorf("%q", said)
	}
	after := n.wait("shell", "going on", func(p *corev1.Pod) bool { return isReady(p) })
	n.requireSame(before, after)

	out, stderr, code = n.berth("exek", "web")
	if code != 2 || !strings.Contains(stderr, `did you mean exec?`) || !strings.Contains(stderr, "Usage: berth COMMAND") {
		t.Errorf("%d, %q, %q", code, out, stderr)
	}
	if _, stderr, code := n.berth("pods", "--wach"); code != 2 || !strings.Contains(stderr, "did you mean --watch?") {
		t.Errorf("%d, %q", code, stderr)
	}
	n.remove("web.yaml")
	n.remove("shell.yaml")
	n.waitGone("web")
	n.waitGone("shell")
	n.requireNoPods()
}

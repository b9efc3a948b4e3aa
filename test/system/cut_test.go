package system

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// heard is a writer that tells when a text has come.
type heard struct {
	mu   sync.Mutex
	all  bytes.Buffer
	text string
	once sync.Once
	came chan struct{}
}

func newHeard(text string) *heard { return &heard{text: text, came: make(chan struct{})} }

func (h *heard) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all.Write(p)
	if strings.Contains(h.all.String(), h.text) {
		h.once.Do(func() { close(h.came) })
	}
	return len(p), nil
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all.String()
}

// TestStreamsOfKilledAgent kills the agent while each of its commands that goes on is in the midst of it. None says
// that it is done.
func TestStreamsOfKilledAgent(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	n := startNode(t, fmt.Sprintf("--port=%d", port), "--address=127.0.0.1")
	n.apply("web.yaml", pod("web", `
  containers:
  - name: main
    image: `+image+`
    stdin: true
    command: [sh, -c, 'while :; do echo tick; sleep 1; done']
`))
	n.waitReady("web")
	forwarded := freePort(t)
	const ticking = "while :; do echo tick; sleep 1; done"
	type running struct {
		name     string
		out, err *heard
		cmd      *exec.Cmd
	}
	var all []running
	for name, args := range map[string][]string{
		"exec":         {"exec", "web", "--", "sh", "-c", ticking},
		"exec -i":      {"exec", "-i", "web", "--", "sh", "-c", ticking},
		"attach":       {"attach", "web"},
		"logs":         {"logs", "-f", "web"},
		"logs of all":  {"logs", "-f", "--all-containers", "web"},
		"pods":         {"pods", "-w"},
		"events":       {"events", "-w"},
		"port-forward": {"port-forward", "web", fmt.Sprintf("%d:1", forwarded)},
	} {
		text := "tick"
		switch name {
		case "pods", "events":
			text = "web"
		case "port-forward":
			text = "Forwarding from"
		}
		r := running{
			name, newHeard(text), newHeard("\x00"),
			exec.Command(bin("berth"), append([]string{"--run-dir=" + n.Dir + "/run"}, args...)...),
		}
		r.cmd.Stdout, r.cmd.Stderr = r.out, r.err
		if name == "exec -i" {
			in, err := r.cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
		}
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	sockets := cutWebSocket(t, n, port, ticking)
	for _, r := range all {
		<-r.out.came
	}
	n.kill()
	for _, r := range all {
		_ = r.cmd.Wait() // how it ended is asked below
		if code := r.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(r.err.String(), "berth: ") {
			t.Errorf("%s: exit code %d: %s", r.name, code, r.err)
		}
	}
	if err := <-sockets; err == nil {
		t.Error("a command over a WebSocket ended well")
	}
	n.start()
	if out := n.must("exec", "web", "--", "echo", "well"); out != "well\n" {
		t.Errorf("%q", out)
	}
	n.remove("web.yaml")
	n.waitGone("web")
	n.requireNoPods()
}

// cutWebSocket runs a command over a WebSocket, as kubectl does, and returns how it ends, once its output has begun.
func cutWebSocket(t *testing.T, n *Node, port int, command string) <-chan error {
	t.Helper()
	prefix := filepath.Join(n.Dir, "ann")
	n.must("cert", "ann", "--out", prefix)
	c := &rest.Config{
		Host: fmt.Sprintf("https://localhost:%d", port),
		TLSClientConfig: rest.TLSClientConfig{CertFile: prefix + ".crt", KeyFile: prefix + ".key", CAFile: prefix +
			"-ca.crt"},
	}
	q := url.Values{"command": {"sh", "-c", command}, "output": {"1"}}
	ex, err := remotecommand.NewWebSocketExecutor(c, http.MethodGet, c.Host+"/exec/default/web-node/main?"+q.Encode())
	if err != nil {
		t.Fatal(err)
	}
	out, end := newHeard("tick"), make(chan error, 1)
	go func() {
		end <- ex.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: out, Stderr: io.Discard})
	}()
	<-out.came
	return end
}

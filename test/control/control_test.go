// Package control starts the built control plane as a user would, and drives it with Kubernetes' own client.
package control

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	binary = "../../bin/berth-control"
	// patience is how long something may take that takes a second on an idle machine.
	patience = 2 * time.Minute
)

// TestMain runs more tests at a time than the machine has CPUs, since most of them wait most of the time: for an
// election, a retry, a lease that ends. The flag -parallel says otherwise.
func TestMain(m *testing.M) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.NumCPU())); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// plane is a control plane that runs, in a data directory of its own.
type plane struct {
	dir    string
	cmd    *exec.Cmd
	output *said
	ended  chan struct{}
	config *rest.Config
	client kubernetes.Interface
	dyn    dynamic.Interface
}

// said is what a process writes, which may be read while it runs.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

// String implements [fmt.Stringer].
func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// start starts the control plane on a data directory and waits until it is ready.
func start(t *testing.T, dir string) *plane {
	t.Helper()
	return startAt(t, dir, "0")
}

// startAt is start with a port, and further flags.
func startAt(t *testing.T, dir, port string, flags ...string) *plane {
	t.Helper()
	return startOn(t, dir, "127.0.0.1", port, flags...)
}

// startAlone is startAt without controllers and scheduler: nodes that are a test's own have no leases, and what is on a
// node that is silent is not ready, and goes.
func startAlone(t *testing.T, dir, port string) *plane {
	t.Helper()
	return startAt(t, dir, port, "--controllers=", "--scheduler=false")
}

// startOn is startAt with an address.
func startOn(t *testing.T, dir, address, port string, flags ...string) *plane {
	t.Helper()
	return startWith(t, dir, nil, append([]string{"--bind", address, "--port", port}, flags...)...)
}

// startWith is start with flags, and a file for its standard output.
func startWith(t *testing.T, dir string, stdout *os.File, flags ...string) *plane {
	t.Helper()
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("%s is not built: make control", binary)
	}
	p := &plane{dir: dir, output: &said{}, ended: make(chan struct{})}
	args := append([]string{"serve", "--data-dir", dir, "--bind", "127.0.0.1", "--port", "0"}, flags...)
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), binary, args...)
	p.cmd.Stderr = p.output
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the control plane has written:\n%s", p.output)
		}
	})
	p.ready(t)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	p.config = config
	p.client, p.dyn = kubernetes.NewForConfigOrDie(config), dynamic.NewForConfigOrDie(config)
	return p
}

// ready waits for the process of this start to be ready at the port that it has chosen.
func (p *plane) ready(t *testing.T) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	until(t, "the control plane is ready", func() error {
		select {
		case <-p.ended:
			t.Fatalf("the control plane has ended:\n%s", p.output)
		default:
		}
		var state struct {
			Port  int
			Local string
		}
		text, err := os.ReadFile(filepath.Join(p.dir, "serving.json"))
		if err == nil {
			err = json.Unmarshal(text, &state)
		}
		if err != nil {
			return err
		}
		answer, err := client.Get(fmt.Sprintf("https://%s:%d/readyz", state.Local, state.Port))
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", answer.Status, body)
		}
		return err
	})
}

// port is where the process listens.
func (p *plane) port(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(p.config.Host)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

// kill kills the process and waits until it is gone.
func (p *plane) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop asks the control plane to end, and waits until it has.
func (p *plane) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("the control plane has not ended within %s", patience)
	}
}

// until tries until something is so.
func until(t *testing.T, what string, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// run runs a command of the control plane on the data directory.
func (p *plane) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), binary, append(args, "--data-dir", p.dir)...).CombinedOutput()
	if err != nil {
		t.Fatalf("berth-control %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Package plane starts the built control plane for tests of nodes.
package plane

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// patience is how long something may take that takes a second on an idle machine.
const patience = 4 * time.Minute

// loopback is where a control plane listens, unless its flags say otherwise.
const loopback = "127.0.0.1"

// Plane is a control plane that runs, in a data directory of its own.
type Plane struct {
	Dir    string
	Config *rest.Config // of the administrator
	Client kubernetes.Interface
	// Process is the one of the last start, Output what it has written so far, and Ended is closed when it has ended.
	Process *exec.Cmd
	Output  fmt.Stringer
	Ended   <-chan struct{}

	binary string
	port   string
	flags  []string
	stdout *os.File // nil: it is Output's, too
	run    Runner
}

// Runner starts a process, and closes ended when it has ended.
type Runner func(cmd *exec.Cmd, ended chan<- struct{}) error

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

// Start starts the program of a control plane on a data directory and waits until it is ready. It ends with the test.
func Start(t *testing.T, binary, dir string, flags ...string) *Plane {
	t.Helper()
	return StartTo(t, binary, dir, nil, flags...)
}

// StartTo is Start with a file for the standard output; nil: none.
func StartTo(t *testing.T, binary, dir string, stdout *os.File, flags ...string) *Plane {
	t.Helper()
	return startBy(t, run, binary, dir, stdout, flags)
}

// StartBy is Start with another way to run the process.
func StartBy(t *testing.T, by Runner, binary, dir string, flags ...string) *Plane {
	t.Helper()
	return startBy(t, by, binary, dir, nil, flags)
}

func startBy(t *testing.T, by Runner, binary, dir string, stdout *os.File, flags []string) *Plane {
	t.Helper()
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("%s is not built: make control", binary)
	}
	p := &Plane{Dir: dir, binary: binary, port: Port(t, loopback), flags: flags, stdout: stdout, run: by}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the control plane has written:\n%s", p.Output)
		}
	})
	p.launch(t)
	p.connect(t)
	return p
}

// connect makes the client of the administrator.
func (p *Plane) connect(t *testing.T) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.Dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	p.Config, p.Client = config, kubernetes.NewForConfigOrDie(config)
}

// Again starts it again, at the port that it had, after it was killed.
func (p *Plane) Again(t *testing.T) {
	t.Helper()
	p.launch(t)
}

// run is a [Runner]. The process ends with this one, also where nobody is left to end it:
// tests that are killed, or out of time, run no cleanups.
func run(cmd *exec.Cmd, ended chan<- struct{}) error {
	started := make(chan error, 1)
	go func() {
		// The kernel takes the end of the thread that has started a process for the end of its parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(ended)
	}()
	return <-started
}

func (p *Plane) launch(t *testing.T) {
	t.Helper()
	output, ended := &said{}, make(chan struct{})
	p.Output, p.Ended = output, ended
	args := append([]string{"serve", "--data-dir", p.Dir, "--bind", loopback, "--port", p.port}, p.flags...)
	p.Process = exec.CommandContext(context.WithoutCancel(t.Context()), p.binary, args...)
	p.Process.Stderr, p.Process.Stdout = output, output
	if p.stdout != nil {
		p.Process.Stdout = p.stdout
	}
	if err := p.run(p.Process, ended); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	Until(t, "the control plane is ready", func() error {
		select {
		case <-p.Ended:
			t.Fatalf("the control plane has ended:\n%s", p.Output)
		default:
		}
		return p.ready(client)
	})
}

// ready asks the process of this start at the port that it has chosen.
func (p *Plane) ready(client *http.Client) error {
	var state struct {
		Port  int
		Local string
	}
	text, err := os.ReadFile(filepath.Join(p.Dir, "serving.json"))
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
	p.port = fmt.Sprint(state.Port)
	return err
}

// Kill kills the process and waits until it is gone.
func (p *Plane) Kill() {
	if p.Process == nil || p.Process.Process == nil {
		return
	}
	_ = p.Process.Process.Kill()
	<-p.Ended
}

// Freeze stops the process, so that it answers nothing and ends no connection, and returns what lets it go on.
func (p *Plane) Freeze(t *testing.T) (thaw func()) {
	t.Helper()
	if err := p.Process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := p.Process.Process.Signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}
}

// Run runs a command of the control plane on the data directory.
func (p *Plane) Run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), p.binary, append(args, "--data-dir", p.Dir)...).CombinedOutput()
	if err != nil {
		t.Fatalf("berth-control %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// WriteKubeconfig writes how the API is reached into a file.
func WriteKubeconfig(t *testing.T, c *rest.Config, path string) {
	t.Helper()
	k := clientcmdapi.NewConfig()
	k.Clusters["c"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	k.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData, Token: c.BearerToken}
	k.Contexts["x"], k.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	if err := clientcmd.WriteToFile(*k, path); err != nil {
		t.Fatal(err)
	}
}

// Bootstrap writes a kubeconfig with a bootstrap token, of the group that may ask for certificates of nodes.
func (p *Plane) Bootstrap(t *testing.T, path string) {
	t.Helper()
	c := rest.AnonymousClientConfig(p.Config)
	c.CAData = p.Config.CAData
	c.BearerToken = strings.TrimSpace(p.Run(t, "token", "create"))
	WriteKubeconfig(t, c, path)
}

// Until tries until something is so.
func Until(t *testing.T, what string, try func() error) {
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

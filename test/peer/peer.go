// Package peer runs the container runtimes of others for tests: containerd and CRI-O, each on directories, a bridge and
// addresses of its own, so that it meets neither the machine's nor another test's.
//
// Debian's containerd is taken from the PATH. Others are given by the environment, since Debian has none:
//
//   - BERTH_CONTAINERD2 names a directory with containerd and containerd-shim-runc-v2 of containerd 2,
//   - BERTH_CRIO names a directory with crio and pinns of CRI-O 1.34 or later; conmon and runc are those in the PATH.
//
// docs/runtime.md says how they are built.
package peer

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/remote"
)

// patience is how long something may take that takes a second or two on an idle machine.
const patience = 4 * time.Minute

// Program is a runtime that can be run.
type Program struct {
	Name string
	// Release is its name with what matters of the version, by which tests know what it lacks.
	Release string
	// HasEvents says whether it has the CRI's stream of events.
	HasEvents bool
	// GroupPrefix stands before the ID of a container in the name of its cgroup.
	GroupPrefix string

	path      string
	runc      string // a script in place of runc
	bundles   bundles
	configure func(*Runtime) settings
}

// The releases.
const (
	Containerd16 = "containerd 1.6"
	Containerd22 = "containerd 2.2"
	CRIO134      = "CRI-O 1.34"
)

// Containerd is Debian's. The test is skipped without it.
func Containerd(t *testing.T) Program {
	t.Helper()
	path, err := exec.LookPath("containerd")
	if err != nil {
		t.Skip("containerd is not installed (.ci/deps test installs it)")
	}
	return Program{Name: "containerd", Release: Containerd16, path: path, configure: containerd, bundles: containerdBundles}
}

// Containerd2 is the one that the environment names. The test is skipped when it names none.
func Containerd2(t *testing.T) Program {
	t.Helper()
	return Program{
		Name: "containerd", Release: Containerd22, HasEvents: true,
		path: named(t, "BERTH_CONTAINERD2", "containerd", "containerd-shim-runc-v2"), configure: containerd, bundles: containerdBundles,
	}
}

// CRIO is the one that the environment names. The test is skipped when it names none. It has its stream of events when
// that is asked for, which is not how it is installed.
func CRIO(t *testing.T, events bool) Program {
	t.Helper()
	return Program{
		Name: "cri-o", Release: CRIO134, HasEvents: events, GroupPrefix: "crio-",
		path: named(t, "BERTH_CRIO", "crio", "pinns"), configure: func(r *Runtime) settings { return crio(r, events) },
		bundles: crioBundles,
	}
}

// named is the first of the programs in the directory that the environment names.
func named(t *testing.T, variable string, programs ...string) string {
	t.Helper()
	dir := os.Getenv(variable)
	if dir == "" {
		t.Skipf("$%s is not set: it names a directory with %s", variable, strings.Join(programs, " and "))
	}
	for _, p := range programs {
		if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
			t.Fatalf("$%s: %v", variable, err)
		}
	}
	return filepath.Join(dir, programs[0])
}

// Place is where a runtime of a test lives.
type Place struct {
	Dir          string // where it keeps everything
	Bridge, CIDR string // of its pods
	Images       string // directory with pause.tar, the image of its sandboxes
	Log          string // file that it logs to
}

// Runtime is a runtime of a test.
type Runtime struct {
	Program
	Place
	Socket string

	short    string // directory of sockets whose paths would be too long elsewhere
	cmd      *exec.Cmd
	ended    chan struct{}
	env      []string
	args     []string
	registry *httptest.Server
	client   *remote.Runtime
}

// New prepares a runtime. At the end of the test it is stopped, and what it has left on the machine is removed,
// whoever's fault that was; its pods and their groups have been removed by then.
func New(t *testing.T, p Program, place Place) *Runtime {
	t.Helper()
	r := &Runtime{Program: p, Place: place, Socket: place.Dir + "/sock"}
	var err error
	r.short, err = os.MkdirTemp("/run", "peer")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(r.short) })
	r.keepMachine(t)
	r.serveImages(t)
	s := p.configure(r)
	s.files["cni/10-test.conflist"] = r.network()
	for name, text := range s.files {
		path := filepath.Join(r.Dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o755)) // one may be a program
	}
	r.args, r.env = s.args, s.env
	r.client, err = remote.Dial(remote.Config{Endpoint: r.Socket})
	must(t, err)
	t.Cleanup(func() {
		_ = r.client.Close()
		r.Stop(t)
		r.unmount()
		if err := exec.Command("ip", "link", "del", r.Bridge).Run(); err != nil {
			t.Logf("remove bridge: %v", err) // no pod had a network
		}
	})
	return r
}

func (r *Runtime) network() string {
	return fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "%[1]s", "plugins": [
  {"type": "bridge", "bridge": "%[1]s", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "%[2]s/ipam", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "%[3]s"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`, r.Bridge, r.Dir, r.CIDR)
}

// Start starts the runtime and waits until it answers.
func (r *Runtime) Start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(r.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	defer log.Close()
	cmd := exec.Command(r.path, r.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), r.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	r.cmd, r.ended = cmd, ended
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answers := make(chan error, 1)
	go func() {
		_, err := r.client.Version(ctx, &runtimeapi.VersionRequest{})
		for err != nil && ctx.Err() == nil { // containerd listens before it is ready
			time.Sleep(20 * time.Millisecond)
			_, err = r.client.Version(ctx, &runtimeapi.VersionRequest{})
		}
		answers <- err
	}()
	select {
	case err = <-answers:
	case <-ended:
		err = errors.New(cmd.ProcessState.String())
	}
	if err != nil {
		b, _ := os.ReadFile(r.Log)
		t.Fatalf("start %s: %v\n%s", r.Name, err, b[max(0, len(b)-4000):])
	}
}

// Kill ends the runtime as a crash would.
func (r *Runtime) Kill() {
	_ = r.cmd.Process.Kill()
	<-r.ended
}

// Stop ends the runtime. Nothing happens when it does not run.
func (r *Runtime) Stop(t *testing.T) {
	t.Helper()
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.ended:
	case <-time.After(patience):
		t.Errorf("%s does not end", r.Name)
		r.Kill()
	}
}

// Pid is the process that was started last.
func (r *Runtime) Pid() int { return r.cmd.Process.Pid }

// unmount takes away the mounts below the runtime's directory, the innermost first.
func (r *Runtime) unmount() {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for _, l := range slices.Backward(strings.Split(string(b), "\n")) {
		if f := strings.Fields(l); len(f) > 4 && strings.HasPrefix(f[4], r.Dir+"/") {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

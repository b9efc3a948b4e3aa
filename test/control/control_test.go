// Package control starts the built control plane as a user would, and drives it with Kubernetes' own client.
package control

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	planes "github.com/berth-node/berth/test/plane"
)

const (
	binary = "../../bin/berth-control"
	// patience is how long something may take that takes a second on an idle machine.
	patience = 2 * time.Minute
)

// common is the control plane of the tests that need none of their own.
var common planes.Common

// TestMain runs more tests at a time than the machine has CPUs, since most of them wait most of the time: for an
// election, a retry, a lease that ends. The flag -parallel says otherwise.
func TestMain(m *testing.M) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.NumCPU())); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if err := common.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "the control plane that tests share:", err)
		code = 1
	}
	os.Exit(code)
}

// plane is a control plane that runs, in a data directory of its own: one of test/plane, as the tests here know it.
type plane struct {
	of *planes.Plane
	// ns is the namespace that helpers make things in; tests that share a control plane have one of their own each.
	ns     string
	shared bool
	dir    string
	cmd    *exec.Cmd
	output fmt.Stringer
	ended  <-chan struct{}
	config *rest.Config
	client kubernetes.Interface
	dyn    dynamic.Interface
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
	if port == "0" {
		port = planes.Port(t, address) // it is started there again after a kill
	}
	return startWith(t, dir, nil, append([]string{"--bind", address, "--port", port}, flags...)...)
}

// startWith is start with flags, and a file for its standard output.
func startWith(t *testing.T, dir string, stdout *os.File, flags ...string) *plane {
	t.Helper()
	return known(planes.StartTo(t, binary, dir, stdout, flags...), metav1.NamespaceDefault)
}

func known(of *planes.Plane, namespace string) *plane {
	return &plane{
		of: of, ns: namespace, dir: of.Dir, cmd: of.Process, output: of.Output, ended: of.Ended, config: of.Config, client: of.Client,
		dyn: dynamic.NewForConfigOrDie(of.Config),
	}
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
	p.alone()
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop asks the control plane to end, and waits until it has.
func (p *plane) stop(t *testing.T) {
	t.Helper()
	p.alone()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("the control plane has not ended within %s", patience)
	}
}

// alone holds that what is to end is not what other tests stand on.
func (p *plane) alone() {
	if p.shared {
		panic("a test ends the control plane that others share: it needs one of its own")
	}
}

// until tries until something is so.
func until(t *testing.T, what string, try func() error) {
	t.Helper()
	planes.Until(t, what, try)
}

// run runs a command of the control plane on the data directory.
func (p *plane) run(t *testing.T, args ...string) string {
	t.Helper()
	return p.of.Run(t, args...)
}

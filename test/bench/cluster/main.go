// Command cluster measures the agent and Kubernetes' kubelet with containerd as nodes of one API server, berth-control,
// one after the other in one run, and prints ratios:
//
//	go run ./test/bench/cluster -kubelet bin/cluster/kubelet
//
// "Running" is the moment at which the container's own process has made a file in a directory of the host, "Ready" and
// "gone" those at which a watch of the API server says so. Pods are created with the node's name in them, so they are
// bound from the first, but for -workloads, which has controllers and the scheduler of berth-control do what a
// Deployment and a Job take. Writes are counted by the API server, in its metrics, for the objects that a node writes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// bench is one run.
type bench struct {
	dir, bin, kubelet string
	kubectl           string
	whole             bool
	profiles          string
	runs, many        int
	idle              time.Duration
	control           *exec.Cmd
	client            kubernetes.Interface
	rest              *rest.Config
	figures           figures
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	b := &bench{}
	flag.StringVar(&b.bin, "bin", "bin", "directory of berth's binaries and the test image")
	flag.StringVar(&b.kubelet, "kubelet", "bin/cluster/kubelet", "kubelet; empty: berth alone")
	flag.IntVar(&b.runs, "runs", 20, "how often one pod is started")
	flag.IntVar(&b.many, "many", 100, "how many pods are bound at once")
	flag.DurationVar(&b.idle, "idle", time.Minute, "how long requests are counted while nothing happens; 0: not at all")
	flag.BoolVar(&b.whole, "workloads", false, "a Deployment and a Job are measured, and nothing else")
	flag.StringVar(&b.kubectl, "kubectl", "bin/cluster/kubectl", "kubectl, which creates the Deployment")
	flag.StringVar(&b.profiles, "profiles", "", "directory for CPU profiles of the agent and of the control plane; empty: none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx); err != nil {
		stop()
		log.Fatal(err)
	}
}

func (b *bench) run(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root")
	}
	if b.dir, err = os.MkdirTemp("/var/tmp", "berth-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.bin, err = filepath.Abs(b.bin); err != nil {
		return err
	}
	down, err := b.plane(ctx)
	if err != nil {
		return err
	}
	defer down()
	nodes := []node{&agent{b: b}}
	if b.kubelet != "" {
		nodes = append(nodes, &kubelet{b: b})
	}
	defer b.figures.print(nodes)
	for _, n := range nodes {
		if err := b.measure(ctx, n); err != nil {
			return fmt.Errorf("%s: %w", n.Name(), err)
		}
		if a, is := n.(*agent); is && b.idle > 0 && !b.whole {
			if err := b.static(ctx, a); err != nil {
				return fmt.Errorf("static pods: %w", err)
			}
		}
	}
	return nil
}

// plane starts the control plane, and returns what ends it.
func (b *bench) plane(ctx context.Context) (func(), error) {
	cmd, err := b.begin("control", b.bin+"/berth-control", "serve", "--data-dir", b.dir+"/plane", "--bind", "127.0.0.1", "--port", "26443")
	if err != nil {
		return nil, err
	}
	b.control = cmd
	down := func() { end(cmd) }
	err = until(ctx, "the control plane is ready", func() error {
		if b.rest, err = clientcmd.BuildConfigFromFlags("", b.dir+"/plane/admin.kubeconfig"); err != nil {
			return err
		}
		b.rest.QPS = -1
		if b.client, err = kubernetes.NewForConfig(b.rest); err != nil {
			return err
		}
		return b.client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		down()
		return nil, err
	}
	return down, nil
}

// begin starts a program whose output goes to a log of its own.
func (b *bench) begin(name, program string, args ...string) (*exec.Cmd, error) {
	out, err := os.Create(filepath.Join(b.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, cmd.Start()
}

func end(cmd *exec.Cmd) {
	if cmd != nil && cmd.Process != nil {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
}

// until asks again until there is no error, for two minutes at most.
func until(ctx context.Context, what string, ok func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := ok()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

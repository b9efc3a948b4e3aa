package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// startLimit bounds the start of a control plane.
const startLimit = 2 * time.Minute

// plane is a control plane that runs.
type plane struct {
	ready     time.Duration
	processes []*exec.Cmd
	config    *rest.Config
	client    kubernetes.Interface
	profiles  string // directory; empty: none are taken
}

func (p *plane) begin(dir, name string, args ...string) error {
	out, err := os.Create(filepath.Join(dir, filepath.Base(name)+".log"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return err
	}
	p.processes = append(p.processes, cmd)
	return nil
}

func (p *plane) stop() {
	for _, cmd := range p.processes {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// starter starts a control plane in a directory, with what it had before if it was started there.
type starter func(ctx context.Context, c config, dir string) (*plane, error)

// startOurs starts berth-control, with controllers and scheduler only where they are asked for.
func startOurs(ctx context.Context, c config, dir string) (*plane, error) {
	p, port, kubeconfig := &plane{profiles: c.profiles}, freePort(), filepath.Join(dir, "admin.kubeconfig")
	// One of a start before has the port of before.
	if err := os.Remove(kubeconfig); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	began := time.Now()
	args := []string{"serve", "--data-dir=" + dir, "--bind=127.0.0.1", "--port=" + port}
	if !c.controllers {
		args = append(args, "--controllers=")
	}
	args = append(args, fmt.Sprint("--scheduler=", c.scheduler))
	if err := p.begin(dir, c.control, args...); err != nil {
		return nil, err
	}
	return p, p.await(ctx, began, kubeconfig)
}

func startTheirs(ctx context.Context, c config, dir string) (*plane, error) {
	p, clients, peers, port := &plane{}, "http://127.0.0.1:"+freePort(), "http://127.0.0.1:"+freePort(), freePort()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"key":    string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		"tokens": "secret,admin,1,system:masters\n",
		"kubeconfig": "apiVersion: v1\nkind: Config\ncurrent-context: c\n" +
			"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:" + port + "', insecure-skip-tls-verify: true}}]\n" +
			"users: [{name: u, user: {token: secret}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	if err := p.begin(dir, c.etcd, "--data-dir="+dir+"/etcd", "--listen-client-urls="+clients, "--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers); err != nil {
		return nil, err
	}
	if err := p.begin(dir, c.apiserver, "--etcd-servers="+clients, "--bind-address=127.0.0.1", "--secure-port="+port, "--cert-dir="+dir,
		"--service-account-key-file="+dir+"/key", "--service-account-signing-key-file="+dir+"/key",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC", "--token-auth-file="+dir+"/tokens"); err != nil {
		p.stop()
		return nil, err
	}
	if err := p.await(ctx, began, filepath.Join(dir, "kubeconfig")); err != nil {
		return nil, err
	}
	if err := p.beginTheirs(c, dir); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// beginTheirs starts Kubernetes' scheduler and controller manager, where they are asked for. Their
// clients are not held back, as the scheduler's is not in scheduler_perf.
func (p *plane) beginTheirs(c config, dir string) error {
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if c.controllers {
		if err := p.begin(dir, c.manager, "--kubeconfig="+kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port="+freePort(),
			"--cert-dir="+dir, "--service-account-private-key-file="+dir+"/key", "--kube-api-qps=5000", "--kube-api-burst=5000"); err != nil {
			return err
		}
	}
	if !c.scheduler {
		return nil
	}
	text := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {leaderElect: false}\n" +
		"clientConnection: {kubeconfig: '" + kubeconfig + "', qps: 5000, burst: 5000, contentType: application/vnd.kubernetes.protobuf}\n"
	if err := os.WriteFile(filepath.Join(dir, "scheduler.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	return p.begin(dir, c.kubeScheduler, "--config="+dir+"/scheduler.yaml", "--bind-address=127.0.0.1", "--secure-port="+freePort(), "--cert-dir="+dir)
}

// await waits until the API answers that it is ready. It asks again and again: nothing else tells.
func (p *plane) await(ctx context.Context, began time.Time, kubeconfig string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := p.connect(kubeconfig)
		if err == nil {
			if _, err = p.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err == nil {
				p.ready = time.Since(began)
				return nil
			}
		}
		if wait(ctx, 5*time.Millisecond) != nil {
			p.stop()
			return fmt.Errorf("wait for the API server: %w", err)
		}
	}
}

func (p *plane) connect(kubeconfig string) error {
	if p.client != nil {
		return nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	c.QPS, c.ContentType = -1, "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return err
	}
	p.config, p.client = c, client
	return nil
}

// cpu is the time that the processes have run.
func (p *plane) cpu() (time.Duration, error) {
	var all time.Duration
	for _, cmd := range p.processes {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			return 0, err
		}
		f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		for _, i := range []int{11, 12} { // user and system, in ticks of 10 ms
			n, err := strconv.Atoi(f[i])
			if err != nil {
				return 0, err
			}
			all += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return all, nil
}

// since is for how many milliseconds the processes have run since then.
func (p *plane) since(before time.Duration) (float64, error) {
	after, err := p.cpu()
	return (after - before).Seconds() * 1000, err
}

// rss is the resident memory of the processes in MB.
func (p *plane) rss() (float64, error) { return p.memory("VmRSS:") }

// peak is the most resident memory that the processes have had, in MB.
func (p *plane) peak() (float64, error) { return p.memory("VmHWM:") }

func (p *plane) memory(field string) (float64, error) {
	var all float64
	for _, cmd := range p.processes {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err != nil {
			return 0, err
		}
		_, rest, ok := strings.Cut(string(data), field)
		if !ok {
			return 0, fmt.Errorf("read memory of %d: no %s", cmd.Process.Pid, field)
		}
		kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		if err != nil {
			return 0, err
		}
		all += kb * 1024 / 1e6
	}
	return all, nil
}

func freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "0"
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

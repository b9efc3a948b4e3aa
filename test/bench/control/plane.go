package main

import (
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
	"path/filepath"
	"strconv"
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
	processes processes
	config    *rest.Config
	client    kubernetes.Interface
	profiles  string // directory; empty: none are taken
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
	if err := p.processes.begin(dir, c.control, args...); err != nil {
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
	if err := p.processes.begin(dir, c.etcd, "--data-dir="+dir+"/etcd", "--listen-client-urls="+clients, "--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers); err != nil {
		return nil, err
	}
	if err := p.processes.begin(dir, c.apiserver, "--etcd-servers="+clients, "--bind-address=127.0.0.1", "--secure-port="+port, "--cert-dir="+dir,
		"--service-account-key-file="+dir+"/key", "--service-account-signing-key-file="+dir+"/key",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC", "--token-auth-file="+dir+"/tokens"); err != nil {
		p.processes.stop()
		return nil, err
	}
	if err := p.await(ctx, began, filepath.Join(dir, "kubeconfig")); err != nil {
		return nil, err
	}
	if err := p.beginTheirs(c, dir); err != nil {
		p.processes.stop()
		return nil, err
	}
	return p, nil
}

// beginTheirs starts Kubernetes' scheduler and controller manager, where they are asked for. Their clients are not held
// back, as the scheduler's is not in scheduler_perf.
func (p *plane) beginTheirs(c config, dir string) error {
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if c.controllers {
		if err := p.processes.begin(dir, c.manager, "--kubeconfig="+kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port="+freePort(),
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
	return p.processes.begin(dir, c.kubeScheduler, "--config="+dir+"/scheduler.yaml", "--bind-address=127.0.0.1", "--secure-port="+freePort(), "--cert-dir="+dir)
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
			p.processes.stop()
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

func freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "0"
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

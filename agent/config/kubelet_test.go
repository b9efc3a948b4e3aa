package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
)

func TestKubeletNames(t *testing.T) {
	c := Default()
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	fs.SetNormalizeFunc(KubeletNames)
	c.AddFlags(fs)
	err := fs.Parse([]string{
		"--hostname-override=n1", "--container-runtime-endpoint=unix:///run/containerd/containerd.sock", "--pod-manifest-path=/m",
	})
	if err != nil || c.NodeName != "n1" || c.Endpoint != "unix:///run/containerd/containerd.sock" || c.ManifestDir != "/m" {
		t.Errorf("%s, %s, %s, %v", c.NodeName, c.Endpoint, c.ManifestDir, err)
	}
}

// TestOwnSocket: kubeadm writes the socket that it has found, which is the agent's own.
func TestOwnSocket(t *testing.T) {
	c, err := parse(t, "--node-name=n", "--runtime=unix://"+DefaultRunDir+"/"+CRISocketName)
	if err != nil || c.Endpoint != "" || c.CRISocket != DefaultRunDir+"/"+CRISocketName {
		t.Errorf("endpoint %q, socket %q, %v", c.Endpoint, c.CRISocket, err)
	}
}

func TestAwaitFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kubelet", "config.yaml")
	done := make(chan error)
	go func() { done <- AwaitFile(t.Context(), path) }()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- AwaitFile(ctx, filepath.Join(dir, "never")) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

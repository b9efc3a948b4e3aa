package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// child is the environment variable with the settings of a process that is there to be killed.
const child = "BERTH_TEST_CLUSTER_CHILD"

// TestChild is the process that [TestKillAtRandom] kills.
func TestChild(t *testing.T) {
	text := os.Getenv(child)
	if text == "" {
		t.Skip("it is another test's")
	}
	var cfg Config
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Log = slog.New(slog.DiscardHandler)
	c, err := open(cfg, time.Now, pauses{first: time.Millisecond, most: time.Millisecond, denied: time.Millisecond, refused: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Fatal(c.Run(t.Context()))
}

// TestKillAtRandom kills a process that joins, and then renews its certificate without end, at any moment. Whatever is
// on the disk is whole, and the next process goes on from it.
func TestKillAtRandom(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.bootstrap(s)
	var denied atomic.Int32
	s.answers(func(csr *certificatesv1.CertificateSigningRequest) {
		if denied.Add(1)%7 == 0 {
			condition(csr, certificatesv1.CertificateDenied)
			return
		}
		condition(csr, certificatesv1.CertificateApproved)
		csr.Status.Certificate = s.ca.sign(old(), requested(csr).PublicKey) // due at once
	})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	cfg := n.cfg
	cfg.Log = nil
	text, err := json.Marshal(map[string]any{
		"Kubeconfig": cfg.Kubeconfig, "BootstrapKubeconfig": cfg.BootstrapKubeconfig, "CertDir": cfg.CertDir, "NodeName": cfg.NodeName,
		"Rotate": true, "ContentType": cfg.ContentType, "QPS": -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	st := &store{dir: cfg.CertDir, name: "kubelet-client"}
	had := false
	for range 40 {
		before := len(s.asked())
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
		cmd.Env = append(os.Environ(), child+"="+string(text))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		until(t, "it asks", func() error {
			if len(s.asked()) == before {
				return errors.New("it has not")
			}
			return nil
		})
		// Nothing is waited for: it is the moment of the kill.
		time.Sleep(time.Duration(chance.IntN(int(40 * time.Millisecond))))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		pair, err := st.current()
		if err != nil || had && pair == nil {
			t.Fatalf("the certificate is lost: %v", err)
		}
		_, _, err = readAccess(cfg.Kubeconfig)
		if err != nil && (had || !errors.Is(err, fs.ErrNotExist)) {
			t.Fatalf("the kubeconfig is lost: %v", err)
		}
		had = err == nil
	}
	t.Logf("asked %d times", len(s.asked()))
	s.answers(s.approve)
	n.start()
	until(t, "a certificate that lasts", func() error {
		if st := n.State(); time.Until(st.NotAfter) < 99*time.Hour {
			return errors.New(st.Message)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := n.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	n.connect()
	n.joined()
	files, _ := filepath.Glob(filepath.Join(cfg.CertDir, "*"))
	if len(files) > 4 {
		t.Errorf("left: %v", files)
	}
}

package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestServing has a serving certificate signed, another when the addresses change, and the last after a restart.
func TestServing(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.write(n.cfg.Kubeconfig, good(t, s))
	var mu sync.Mutex
	addresses := []string{"10.0.0.1", "n1.example"}
	n.cfg.Addresses = func() []string { mu.Lock(); defer mu.Unlock(); return addresses }
	n.cfg.ServerBootstrap = true
	s.answers(nil)
	n.start()
	until(t, "it waits", func() error {
		if st := n.State(); !strings.Contains(st.Serving, "kubectl certificate approve") {
			return errors.New(st.Serving)
		}
		return nil
	})
	serving := func() *Serving { return n.Client.Serving() }
	if c, err := serving().Certificate(nil); c != nil || err != nil {
		t.Errorf("%v, %v", c, err)
	}
	csr := requested(s.csrs[s.asked()[0]])
	if fmt.Sprint(csr.DNSNames, csr.IPAddresses, csr.Subject) != "[n1 n1.example] [10.0.0.1] CN=system:node:n1,O=system:nodes" {
		t.Error(csr.DNSNames, csr.IPAddresses, csr.Subject)
	}
	for1 := func(host string) {
		t.Helper()
		until(t, "a certificate for "+host, func() error {
			c, _ := serving().Certificate(nil)
			if c == nil {
				return errors.New("none")
			}
			return c.Leaf.VerifyHostname(host)
		})
	}
	// The addresses change while the request waits: it is given up for another.
	mu.Lock()
	addresses = []string{"10.0.0.2"}
	mu.Unlock()
	s.answers(s.approve)
	serving().Readdressed()
	for1("10.0.0.2")
	mu.Lock()
	addresses = []string{"10.0.0.2", "fd00::1"}
	mu.Unlock()
	serving().Readdressed()
	for1("fd00::1")
	n.stopped()
	asked := len(s.asked())
	n.start()
	for1("fd00::1")
	if len(s.asked()) != asked {
		t.Error("asked again")
	}
	until(t, "nothing waits", func() error {
		if st := n.State(); st.Serving != "" {
			return errors.New(st.Serving)
		}
		return nil
	})
	n.stopped()
	n.member.now = func() time.Time { return time.Now().Add(10 * 365 * 24 * time.Hour) }
	if c, _ := serving().Certificate(nil); c != nil {
		t.Error("one that has ended serves")
	}
}

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func good(t *testing.T, s *apiServer) string {
	t.Helper()
	return s.withPair(s.ca.pair(t, client("n1", time.Now().Add(-time.Hour), time.Now().Add(99*time.Hour))))
}

// TestReplaced has a kubeconfig that is broken in many ways, and in the end is of another server.
func TestReplaced(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	other := newAPIServer(t)
	text := good(t, s)
	n.write(n.cfg.Kubeconfig, text)
	n.start()
	n.connect()
	told := 0
	for _, c := range []struct{ text, says string }{
		{"", "it is empty"},
		{text[:len(text)/2], "read kubeconfig"},
		{strings.Replace(text, "current-context: x", "", 1), "current-context is not set"},
		{strings.Replace(text, "current-context: x", "current-context: z", 1), "is none of its contexts"},
		{strings.Replace(text, "https://", "ftp://", 1), "clusters[c].cluster.server"},
	} {
		n.replace(n.cfg.Kubeconfig, c.text)
		until(t, c.says, func() error {
			n.lines.mu.Lock()
			defer n.lines.mu.Unlock()
			if lines := strings.Split(n.lines.text.String(), "kubeconfig is not good"); len(lines) != told+2 || !strings.Contains(lines[told+1], c.says) {
				return errors.New(n.lines.text.String())
			}
			return nil
		})
		told++
		n.connect()
	}
	if err := os.Remove(n.cfg.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	n.connect()
	n.write(n.cfg.Kubeconfig, good(t, other))
	until(t, "the other server", func() error {
		if st := n.State(); st.Server != "https://"+other.address {
			return errors.New(st.Server)
		}
		return nil
	})
	s.srv.CloseClientConnections()
	s.srv.Close()
	n.connect()
	n.phase(Joined)
}

// TestComes has a kubeconfig that is there after the start, in a directory that is, too.
func TestComes(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.cfg.Kubeconfig = filepath.Join(n.dir, "later", "deep", "kubelet.conf")
	n.start()
	n.phase(NotJoined)
	if st := n.State(); !strings.Contains(st.Message, "no such file") {
		t.Error(st.Message)
	}
	if err := os.MkdirAll(filepath.Dir(n.cfg.Kubeconfig), 0o755); err != nil {
		t.Fatal(err)
	}
	n.write(n.cfg.Kubeconfig, good(t, s))
	n.connect()
	n.phase(Joined)
}

// TestParts has files that the kubeconfig refers to, behind a link as in a mounted secret.
func TestParts(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	data := filepath.Join(n.dir, "etc", "..data")
	put := func(version string) string {
		dir := filepath.Join(n.dir, "etc", version)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		pair := s.ca.pair(t, client("n1", time.Now().Add(-time.Hour), time.Now().Add(99*time.Hour)))
		n.write(filepath.Join(dir, "tls.pem"), string(pair))
		n.write(filepath.Join(dir, "ca.crt"), string(s.ca.pem()))
		return version
	}
	if err := os.Symlink(put("one"), data); err != nil {
		t.Fatal(err)
	}
	n.write(n.cfg.Kubeconfig, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s/", certificate-authority: ..data/ca.crt}}]
users: [{name: u, user: {client-certificate: ..data/tls.pem, client-key: ..data/tls.pem}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, s.address))
	n.start()
	n.connect()
	if err := errors.Join(os.Symlink(put("two"), data+".new"), os.Rename(data+".new", data)); err != nil {
		t.Fatal(err)
	}
	until(t, "the new certificate", func() error {
		n.connect()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.serials) != 2 {
			return errors.New("the old one")
		}
		return nil
	})
}

// TestTokenFile has a token that changes: watches go on, and the next call has the new one.
func TestTokenFile(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	path := filepath.Join(n.dir, "etc", "token")
	n.write(path, token+"\n")
	n.write(n.cfg.Kubeconfig, s.kubeconfig("tokenFile: "+path))
	n.start()
	n.connect()
	w, err := n.Watch(t.Context(), schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	s.mu.Lock()
	delete(s.tokens, token)
	s.tokens["another"] = true
	s.mu.Unlock()
	n.write(path, "another")
	until(t, "the other token", func() error { _, err := n.who(); return err })
	select {
	case e := <-w.ResultChan():
		t.Errorf("the watch has ended: %v", e)
	default:
	}
}

func TestExecPlugin(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	plugin := filepath.Join(n.dir, "etc", "plugin")
	n.write(plugin, `#!/bin/sh
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"`+token+`"}}'
`)
	if err := os.Chmod(plugin, 0o700); err != nil {
		t.Fatal(err)
	}
	n.write(n.cfg.Kubeconfig, s.kubeconfig("exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: IfAvailable}"))
	n.start()
	if who, err := n.who(); who != "token" {
		t.Errorf("%s, %v", who, err)
	}
}

// TestHangingPlugin has a plugin that never answers: whoever waits for it gives up.
func TestHangingPlugin(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	plugin, pipe := filepath.Join(n.dir, "etc", "plugin"), filepath.Join(n.dir, "etc", "pipe")
	n.write(plugin, "#!/bin/sh\nexec cat "+pipe+"\n")
	if err := errors.Join(os.Chmod(plugin, 0o700), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	n.write(n.cfg.Kubeconfig, s.kubeconfig("exec: {apiVersion: client.authentication.k8s.io/v1, command: "+plugin+", interactiveMode: Never}"))
	n.start()
	for range 3 {
		until(t, "it is given up", func() error { // one may be late before it comes to the plugin
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			err := n.Get(ctx, schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, types.NamespacedName{Name: "x"}, &corev1.Node{})
			if err == nil {
				t.Fatal("it has answered")
			}
			if strings.Contains(err.Error(), "does not answer") {
				return nil
			}
			return err
		})
	}
	n.write(pipe, `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"`+token+`"}}`)
	until(t, "it answers", func() error { _, err := n.who(); return err })
}

// TestUnreachable has a server that goes away and comes back.
func TestUnreachable(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.write(n.cfg.Kubeconfig, good(t, s))
	n.start()
	n.connect()
	s.srv.CloseClientConnections()
	s.srv.Close()
	for range 3 {
		if _, err := n.who(); err == nil {
			t.Fatal("nobody is there")
		}
	}
	n.phase(Unreachable)
	if n.lines.count("phase=Unreachable") != 1 {
		t.Error("not told once")
	}
	s.listen(s.address)
	until(t, "it is back", func() error { _, err := n.who(); return err })
	n.phase(Joined)
}

// TestCallGoesOn has the kubeconfig replaced while a call is waited for.
func TestCallGoesOn(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.write(n.cfg.Kubeconfig, good(t, s))
	n.start()
	n.connect()
	s.mu.Lock()
	s.slow = make(chan struct{})
	s.mu.Unlock()
	answered := make(chan error, 1)
	go func() { _, err := n.who(); answered <- err }()
	<-s.began
	n.write(n.cfg.Kubeconfig, good(t, s))
	until(t, "the new certificate", func() error {
		if n.lines.count("were replaced") == 0 {
			return errors.New("the old one")
		}
		return nil
	})
	close(s.slow)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// TestDeadConnection has a network that swallows everything: a watch ends all the same.
func TestDeadConnection(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")
	s, n := newAPIServer(t), newNode(t)
	hole := newHole(t, s.address)
	n.write(n.cfg.Kubeconfig, strings.Replace(good(t, s), s.address, hole.l.Addr().String(), 1))
	n.start()
	n.connect()
	w, err := n.Watch(t.Context(), schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hole.dead.Store(true)
	for range w.ResultChan() {
	}
	n.phase(Joined)
	hole.dead.Store(false)
	until(t, "another connection", func() error { _, err := n.who(); return err })
}

// hole is a network that can die.
type hole struct {
	l    net.Listener
	dead atomic.Bool
}

func newHole(t *testing.T, to string) *hole {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	h := &hole{l: l}
	pass := func(from, to net.Conn) {
		defer to.Close()
		for b := make([]byte, 4096); ; {
			n, err := from.Read(b)
			if err != nil {
				return
			}
			if !h.dead.Load() {
				_, _ = to.Write(b[:n])
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			go pass(c, d)
			go pass(d, c)
		}
	}()
	return h
}

// TestPrefix has an API server below a path.
func TestPrefix(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.write(n.cfg.Kubeconfig, strings.Replace(good(t, s), s.address, s.address+"/k8s/clusters/c-1", 1))
	n.start()
	n.connect()
}

func TestFields(t *testing.T) {
	s, dir := newAPIServer(t), t.TempDir()
	text, other := good(t, s), newAuthority(t)
	pair := base64Of(other.pair(t, client("n1", time.Now(), time.Now().Add(time.Hour))))
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for says, text := range map[string]string{
		"it is empty":                     " \n",
		"is none of its clusters":         strings.Replace(text, "cluster: c,", "cluster: q,", 1),
		"is none of its users":            strings.Replace(text, "user: u}", "user: q}", 1),
		"users[u].user.client-key":        s.kubeconfig("client-certificate-data: " + pair + ", client-key: /none"),
		"client-certificate and client":   s.kubeconfig("client-certificate-data: " + pair + ", client-key-data: " + base64Of([]byte("x"))),
		"certificate-authority-data":      strings.Replace(text, base64Of(s.ca.pem()), base64Of([]byte("x")), 1),
		"users[u].user.tokenFile":         s.kubeconfig("tokenFile: /none"),
		fifo:                              s.kubeconfig("tokenFile: " + fifo),
		"more than":                       s.kubeconfig("tokenFile: " + big),
		"command must be":                 s.kubeconfig("exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}"),
		"clusters[c].cluster.server":      strings.Replace(text, "https://", "", 1),
		"did not find expected":           text + "\n}{",
		"clusters[c].cluster.certificate": strings.Replace(text, "certificate-authority-data: "+base64Of(s.ca.pem()), "certificate-authority: /none", 1),
	} {
		path := filepath.Join(dir, "kubeconfig")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := readAccess(path); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", says, err)
		}
	}
}

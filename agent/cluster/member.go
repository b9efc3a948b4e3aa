package cluster

import (
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

type transport = http.RoundTripper

// member keeps a node's credentials for its API server.
type member struct {
	cfg      Config
	log      *slog.Logger
	now      func() time.Time
	pauses   pauses
	link     *link
	standing *standing
	client   *Client  // over the link
	store    *store   // of the client certificate
	serving  *Serving // nil: none is asked for

	changed chan struct{} // hears that credentials were replaced, or the file to have them with

	mu    sync.Mutex
	taken taken
}

// taken is what is in use.
type taken struct {
	access *access          // the last good one; nil: there was none
	pair   *tls.Certificate // with which the API server is asked; nil: without
	route  *route
	sum    [sha256.Size]byte // of both
	boot   [sha256.Size]byte // of the bootstrap kubeconfig
	files  []string
	told   string // what is wrong with the kubeconfig
}

func newMember(c Config, now func() time.Time, p pauses) *member {
	st := &standing{log: c.Log, now: now, refuse: make(chan struct{}, 1)}
	st.facts.renews = c.BootstrapKubeconfig != ""
	if st.facts.renews {
		st.facts.asking, st.facts.about = Requesting, "a client certificate is about to be asked for"
	}
	return &member{
		cfg: c, log: c.Log, now: now, pauses: p, standing: st, link: newLink(st.seen, c.Observer),
		store: &store{dir: c.CertDir, name: "kubelet-client"}, changed: make(chan struct{}, 1),
	}
}

// clean removes what a crash between writing and renaming has left.
func (m *member) clean() {
	m.store.clean()
	left, _ := filepath.Glob(m.kubeconfigPart()) // one whose directory is a pattern is left
	for _, path := range left {
		_ = os.Remove(path)
	}
}

func (m *member) kubeconfigPart() string {
	return filepath.Join(filepath.Dir(m.cfg.Kubeconfig), "."+filepath.Base(m.cfg.Kubeconfig)+".*.part")
}

// watched are the files whose change is one of the credentials.
func (m *member) watched() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := append([]string{m.cfg.Kubeconfig, m.store.currentPath()}, m.taken.files...)
	if m.cfg.BootstrapKubeconfig != "" {
		out = append(out, m.cfg.BootstrapKubeconfig)
	}
	return out
}

// take reads the kubeconfig, and has the API server asked by it if it is another one. One that is not good leaves the
// last.
func (m *member) take() {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &m.taken
	if m.cfg.BootstrapKubeconfig != "" {
		data, _, _ := readFile(m.cfg.BootstrapKubeconfig, 0) // whoever needs it reads it again, and tells
		if sum := sha256.Sum256(data); sum != t.boot {
			t.boot = sum
			m.tellChanged()
		}
	}
	a, files, err := readAccess(m.cfg.Kubeconfig)
	t.files = files
	if err == nil {
		err = m.use(a)
	}
	if err == nil {
		t.told = ""
		return
	}
	m.broken(err)
	if t.access == nil {
		return
	}
	if err := m.use(t.access); err != nil { // the certificate may have been renewed
		m.log.Error("client certificate is not used", "error", err)
	}
}

// broken tells, once, what is wrong with the kubeconfig.
func (m *member) broken(err error) {
	t := &m.taken
	again := t.told == err.Error()
	first := t.told == ""
	t.told = err.Error()
	switch {
	case again:
	case t.access != nil:
		m.log.Error("kubeconfig is not good: the last one that was stays in use", "error", err)
	default:
		if !first {
			m.log.Error("kubeconfig is not good", "error", err)
		}
		m.link.lacks(err)
		m.standing.set(func(f *facts) { f.lack = err })
	}
}

// use has the API server asked by an access.
func (m *member) use(a *access) error {
	t := &m.taken
	pair, data := a.pair, []byte(nil)
	if m.cfg.Rotate && pair != nil {
		if p := m.renewed(a); p != nil {
			pair, data = &p.Certificate, p.data
		}
	}
	sum := sha256.Sum256(append(append([]byte{}, a.sum[:]...), data...))
	if t.route != nil && sum == t.sum {
		t.access = a
		t.route.setToken(a.token)
		return nil
	}
	r, err := newRoute(a.with(data))
	if err != nil {
		return err
	}
	if t.route != nil {
		m.log.Info("credentials of the API server were replaced", "server", a.config.Host)
		m.rotated(t.pair, pair)
	}
	t.access, t.pair, t.route, t.sum = a, pair, r, sum
	m.link.take(r, func() {
		m.standing.set(func(f *facts) {
			f.server, f.pair, f.usable, f.lack = a.config.Host, pair, true, nil
			f.asking, f.about = "", ""
			f.asked, f.unreachable, f.unauthorized = false, nil, false
		})
	})
	m.tellChanged()
	return nil
}

// rotated tells of a certificate that takes another's place.
func (m *member) rotated(old, next *tls.Certificate) {
	if m.cfg.Observer != nil && old != nil && next != nil && !old.Leaf.Equal(next.Leaf) {
		m.cfg.Observer.Rotated(m.now().Sub(old.Leaf.NotBefore))
	}
}

// with is the access with another certificate; none: its own.
func (a *access) with(pair []byte) *access {
	if pair == nil {
		return a
	}
	out := *a
	out.config = rest.CopyConfig(a.config)
	out.config.CertData, out.config.KeyData = pair, pair
	return &out
}

// renewed is the certificate that took the place of the kubeconfig's own, where that does not refer to it, as after
// kubeadm init. A kubeconfig that was put there since may be of another cluster.
func (m *member) renewed(a *access) *kept {
	p, err := m.store.current()
	w := clientWant(m.cfg.NodeName)
	if err != nil || p == nil || p.Leaf.Equal(a.pair.Leaf) || w.satisfied(p.Leaf) != nil || m.now().After(p.Leaf.NotAfter) {
		return nil
	}
	older, now := p.written.Before(a.written), m.now()
	if p.written.After(now) || a.written.After(now) { // a clock was wrong, and what has signed them has another
		older = p.Leaf.NotBefore.Before(a.pair.Leaf.NotBefore)
	}
	if older && now.Before(a.pair.Leaf.NotAfter) {
		return nil
	}
	return p
}

func (m *member) tellChanged() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// writeKubeconfig writes the kubeconfig of a node that has joined: the server is the bootstrap's, the certificate the
// one in use, whichever that is.
func (m *member) writeKubeconfig(boot *access) error {
	pem := m.store.currentPath()
	c := boot.cluster.DeepCopy()
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"default-cluster": c},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"default-auth": {ClientCertificate: pem, ClientKey: pem}},
		Contexts:       map[string]*clientcmdapi.Context{"default-context": {Cluster: "default-cluster", AuthInfo: "default-auth"}},
		CurrentContext: "default-context",
	})
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	err = replace(m.cfg.Kubeconfig, m.kubeconfigPart(), data)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(m.cfg.Kubeconfig), 0o755); err == nil {
			err = replace(m.cfg.Kubeconfig, m.kubeconfigPart(), data)
		}
	}
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

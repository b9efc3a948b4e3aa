// Package podcert has the certificates that pods of an API server ask signers for: a key is made here for each, a
// PodCertificateRequest asks for its certificate, and another one takes its place before that ends. It is in memory
// and in the pod's volume alone, but where it is kept for a start without the server.
package podcert

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/issued"
)

// Client asks the API server.
type Client interface {
	Get(ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, into runtime.Object) error
	Create(ctx context.Context, res schema.GroupVersionResource, o interface {
		metav1.Object
		runtime.Object
	}, into runtime.Object, sub ...string) error
	Watch(
		ctx context.Context, res schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
	) (watch.Interface, error)
}

// Config is what a [Manager] works with. Client and Node are required.
type Config struct {
	Client  Client
	Node    string
	Renewed func(types.UID) // is called when a pod has another certificate than it was given. It returns at once
	Keep    issued.Store    // keeps certificates for a start without the API server; nil: nobody does
	Log     *slog.Logger
}

// Credential is a key with its certificate, as PEM.
type Credential struct{ Key, Chain []byte }

const (
	// signing is how long a signer has: then somebody takes the request away that nobody has answered.
	signing = 15 * time.Minute
	// Between two requests when one was not granted.
	pauseMin = 10 * time.Second
	pauseMax = 10 * time.Minute
	// soonest is the age before which no certificate is renewed, whatever the signer says.
	soonest = 5 * time.Minute
)

// Manager has the certificates of the node's pods. It is safe for concurrent use.
type Manager struct {
	cfg    Config
	ctx    context.Context // of what calls of Credential begin, and the end of Run ends
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]map[source]*holder
}

// source is where a pod has a certificate.
type source struct {
	volume string
	index  int
}

// holder has one certificate of a pod.
type holder struct {
	pod    *corev1.Pod
	want   *corev1.PodCertificateProjection
	name   string // that it is kept under
	cancel context.CancelFunc
	again  chan struct{} // the API server is back

	credential *Credential // nil: none yet
	err        error       // of the last request
}

// Waiting is the error of a certificate that a signer is still at.
type Waiting struct{ Signer string }

func (e *Waiting) Error() string {
	return "waiting for signer " + e.Signer + " to issue the certificate"
}

// Awaits marks the error for who tells of it: nothing has gone wrong yet.
func (*Waiting) Awaits() {}

// New returns a Manager without certificates.
func New(c Config) *Manager {
	if c.Renewed == nil {
		c.Renewed = func(types.UID) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{cfg: c, pods: map[types.UID]map[source]*holder{}}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Run ends all requests when ctx ends, and returns when they have ended.
func (m *Manager) Run(ctx context.Context) {
	<-ctx.Done()
	m.mu.Lock()
	m.cancel()
	m.mu.Unlock()
	m.wait.Wait()
}

// Credential is what a source of a pod's volume is to have. The first time it has a signer be asked, and is [Waiting].
func (m *Manager) Credential(
	pod *corev1.Pod, volume string, index int, want *corev1.PodCertificateProjection,
) (Credential, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := source{volume, index}
	h := m.pods[pod.UID][at]
	if h == nil {
		if m.ctx.Err() != nil {
			return Credential{}, m.ctx.Err()
		}
		h = &holder{pod: pod, want: want, name: keptName(at, want), again: make(chan struct{}, 1)}
		if m.pods[pod.UID] == nil {
			m.pods[pod.UID] = map[source]*holder{}
		}
		m.pods[pod.UID][at] = h
		var ctx context.Context
		ctx, h.cancel = context.WithCancel(m.ctx)
		first := m.adopt(h)
		m.wait.Go(func() { m.hold(ctx, h, first) })
	}
	switch {
	case h.credential != nil:
		return *h.credential, nil
	case h.err != nil:
		return Credential{}, h.err
	}
	return Credential{}, &Waiting{want.SignerName}
}

// Forget drops the certificates of a pod.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.pods[uid] {
		h.cancel()
	}
	delete(m.pods, uid)
}

// hold has a pod have a certificate until ctx ends, and asks for the first one after a time. The one before stays until
// there is another.
func (m *Manager) hold(ctx context.Context, h *holder, first time.Duration) {
	log := m.cfg.Log.With("pod", h.pod.Namespace+"/"+h.pod.Name, "uid", string(h.pod.UID), "signer", h.want.SignerName)
	timer := time.NewTimer(first)
	defer timer.Stop()
	for fails := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-h.again:
			if fails == 0 {
				continue
			}
		}
		made, refresh, err := m.issue(ctx, h)
		if err == nil {
			m.keep(ctx, h, made, refresh)
		}
		if ctx.Err() != nil {
			return
		}
		m.mu.Lock()
		if h.err = err; err == nil {
			h.credential = &made
		}
		none := h.credential == nil
		m.mu.Unlock()
		if err == nil {
			fails = 0
			timer.Reset(max(refresh-rand.N(refresh/20+1), soonest))
			m.cfg.Renewed(h.pod.UID)
			continue
		}
		if errors.As(err, new(*refusal)) && none { // as under kubelet: who has made the pod makes another one
			log.Warn("certificate of the pod is refused, which does not start", "error", err)
			m.cfg.Renewed(h.pod.UID)
			return
		}
		pause := pauseMin << min(fails, 10)
		fails++
		pause = min(pause, pauseMax)
		timer.Reset(pause + rand.N(pause/2))
		log.Warn("certificate of the pod is not there", "error", err, "again-in", pause)
		if fails == 1 {
			m.cfg.Renewed(h.pod.UID) // it is told why it waits
		}
	}
}

var errUnanswered = errors.New("nobody has answered the request")

// Package token has the tokens of service accounts that pods of an API server are given: asked for when a pod needs
// one, bound to it, and renewed in time. They are in memory alone, but where they are kept for a start without the
// server.
package token

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/issued"
)

// Ask has the API server make a token: a POST to the subresource token of a ServiceAccount.
type Ask func(
	ctx context.Context, account types.NamespacedName, r *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error)

// Config is what a [Manager] works with. Ask is required.
type Config struct {
	Ask Ask
	// Renewed is called when a pod has another token than it was given. It returns at once.
	Renewed func(types.UID)
	Keep    issued.Store // keeps tokens for a start without the API server; nil: nobody does
	Log     *slog.Logger
}

// Want says which token of its service account a pod is to have.
type Want struct {
	Audience string // "": the API server's own
	Seconds  int64  // how long it is to be good
	// Once is of a token that nobody is told the successor of: it is renewed when somebody asks for it.
	Once bool
}

// Token is what the API server has made.
type Token struct {
	Text    string
	Expires time.Time // by the clock of the API server
}

const (
	// requestTimeout is how long the API server has for an answer.
	requestTimeout = 10 * time.Second
	// maxToken bounds a token in bytes. Some 1,500 are usual, and no server takes a header of more than a megabyte.
	maxToken = 256 << 10
	// maxLife is what longer lives count for: more overflows.
	maxLife = 10 * 365 * 24 * time.Hour
	// oldest is the age at which a token is renewed that is good for longer, as under kubelet.
	oldest = 24 * time.Hour
	// soonest is the age before which no token is renewed, whatever the server says of its life.
	soonest = time.Minute
)

// Manager has the tokens of the node's pods. It is safe for concurrent use.
type Manager struct {
	cfg  Config
	wake chan struct{} // another token may be the next one to be renewed

	mu   sync.Mutex
	pods map[types.UID]map[Want]*entry
}

// entry is one token of a pod. Ages are taken by the clock of the kernel that nobody sets, so that a clock that jumps
// makes no token old, and the server's may be off.
type entry struct {
	pod    *corev1.Pod
	want   Want
	token  Token         // Text "": there is none yet
	due    time.Time     // when it is to be renewed, or that is to be tried again
	good   time.Time     // until when
	asking chan struct{} // closed when the answer is there; nil: nobody asks
	err    error         // of the last try
	fails  int           // in a row
	ended  bool          // the token was kept, and is good for nothing that looks
}

// New returns a Manager without tokens.
func New(c Config) *Manager {
	if c.Renewed == nil {
		c.Renewed = func(types.UID) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Manager{cfg: c, wake: make(chan struct{}, 1), pods: map[types.UID]map[Want]*entry{}}
}

// Token is the pod's token, which is asked for when there is none that is good.
func (m *Manager) Token(ctx context.Context, pod *corev1.Pod, want Want) (Token, error) {
	for {
		m.mu.Lock()
		e := m.entry(pod, want)
		now := time.Now()
		switch good := e.good.After(now); {
		case good && (!want.Once || e.due.After(now) || e.asking != nil):
			defer m.mu.Unlock()
			return e.token, nil
		case e.asking == nil:
			e.asking = make(chan struct{})
			m.mu.Unlock()
			token, err := m.ask(ctx, e)
			if err != nil && good { // the one before does
				return e.token, nil
			}
			return token, err
		}
		asking := e.asking
		m.mu.Unlock()
		select {
		case <-ctx.Done():
			return Token{}, ctx.Err()
		case <-asking:
		}
		m.mu.Lock()
		err := e.err
		m.mu.Unlock()
		if err != nil && !errors.Is(err, context.Canceled) { // who has asked may have given up, as we have not
			return Token{}, err
		}
	}
}

// entry is the one of a token, which may have none yet. The lock is held.
func (m *Manager) entry(pod *corev1.Pod, want Want) *entry {
	all := m.pods[pod.UID]
	if all == nil {
		all = map[Want]*entry{}
		m.pods[pod.UID] = all
	}
	e := all[want]
	if e == nil {
		e = &entry{pod: pod, want: want}
		all[want] = e
	}
	return e
}

// ask asks for a token, and has those hear of it who wait for that. The entry is marked as asked for.
func (m *Manager) ask(ctx context.Context, e *entry) (Token, error) {
	limit := requestTimeout
	if _, kept := m.kept(e); kept {
		limit = keptTimeout
	}
	asking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	token, life, err := m.request(asking, e)
	if err == nil {
		m.keep(ctx, e, token)
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	close(e.asking)
	e.asking, e.err = nil, err
	if err != nil {
		e.fails++
		e.due = now.Add(pause(err, e.fails))
		if ctx.Err() == nil && m.fallBack(e, err, now) {
			e.err = nil
			return e.token, nil
		}
		if e.token.Text == "" { // its pod asks again
			m.drop(e)
		}
		return Token{}, err
	}
	e.token, e.fails, e.ended = token, 0, false
	e.due, e.good = now.Add(renewAfter(life)), now.Add(life)
	m.ring()
	return token, nil
}

// drop forgets an entry, unless the pod has another one by now. The lock is held.
func (m *Manager) drop(e *entry) {
	all := m.pods[e.pod.UID]
	if all[e.want] != e {
		return
	}
	delete(all, e.want)
	if len(all) == 0 {
		delete(m.pods, e.pod.UID)
	}
}

// request has the server make a token, and says for how long it is good.
func (m *Manager) request(ctx context.Context, e *entry) (Token, time.Duration, error) {
	account := types.NamespacedName{Namespace: e.pod.Namespace, Name: e.pod.Spec.ServiceAccountName}
	if account.Name == "" {
		account.Name = "default"
	}
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &e.want.Seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: e.pod.Name, UID: e.pod.UID},
	}}
	if e.want.Audience != "" {
		r.Spec.Audiences = []string{e.want.Audience}
	}
	token, life, err := read(m.cfg.Ask(ctx, account, r))
	if err != nil {
		return token, life, fmt.Errorf("request token of serviceaccount %s for audience %q: %w", account, e.want.Audience, err)
	}
	if life <= 0 {
		life = min(time.Duration(e.want.Seconds), maxLife/time.Second) * time.Second
	}
	if token.Expires.IsZero() {
		token.Expires = time.Now().Add(life)
	}
	return token, life, nil
}

// read takes an answer apart. How long the token is good is taken from what was granted, not from when it ends: the
// clocks need not agree. It is 0 where the server does not say.
func read(r *authenticationv1.TokenRequest, err error) (Token, time.Duration, error) {
	switch {
	case err != nil:
		return Token{}, 0, err
	case r == nil || r.Status.Token == "":
		return Token{}, 0, errors.New("the answer has none")
	case len(r.Status.Token) > maxToken:
		return Token{}, 0, fmt.Errorf("it has %d bytes, more than %d", len(r.Status.Token), maxToken)
	}
	life := time.Duration(0)
	if s := r.Spec.ExpirationSeconds; s != nil && *s > 0 {
		life = time.Duration(min(*s, int64(maxLife/time.Second))) * time.Second
	}
	return Token{r.Status.Token, r.Status.ExpirationTimestamp.Time}, life, nil
}

// Forget drops the tokens of a pod.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
}

func (m *Manager) ring() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Serving is a serving certificate that the cluster signs.
type Serving struct {
	m       *member
	store   *store
	current atomic.Pointer[tls.Certificate]
	readdr  chan struct{} // hears that addresses of the machine came or went
}

func newServing(m *member) *Serving {
	s := &Serving{m: m, store: &store{dir: m.cfg.CertDir, name: "kubelet-server"}, readdr: make(chan struct{}, 1)}
	s.store.clean()
	pair, err := s.store.current()
	if err != nil {
		m.log.Warn("another serving certificate is asked for", "error", err)
	}
	if pair != nil {
		s.current.Store(&pair.Certificate)
	}
	return s
}

// Certificate is for tls.Config.GetCertificate. It is nil while the cluster has given none that is good.
func (s *Serving) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c := s.current.Load()
	if c == nil || s.m.now().After(c.Leaf.NotAfter) || c.Leaf.Subject.CommonName != nodeUser+s.m.cfg.NodeName {
		return nil, nil
	}
	return c, nil
}

// addressesEvery is how often the addresses are looked at of which the kernel does not tell, as names.
const addressesEvery = time.Minute

// run asks for certificates whenever one is needed, until ctx ends.
func (s *Serving) run(ctx context.Context) {
	s.subscribe(ctx)
	var tries tries
	for ctx.Err() == nil {
		w, ok := s.wanted()
		if !ok || s.good(w) {
			tries.reset()
			s.tell("")
			s.wait(ctx, addressesEvery)
			continue
		}
		err := s.ask(ctx, w)
		if err == nil {
			tries.succeeded(ctx, s.m.pauses)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if tries.another(err) && !errors.Is(err, errReaddressed) {
			s.m.log.Error("serving certificate was not had, and is asked for again later", "error", clip(err.Error()))
		}
		if !errors.Is(err, errReaddressed) {
			s.tell(clip(err.Error()))
			s.wait(ctx, tries.pause(s.m.pauses, err))
		}
	}
}

func (s *Serving) tell(what string) {
	s.m.standing.set(func(f *facts) { f.serving = what })
}

// wanted is the certificate that the node's addresses ask for; false: it has none yet.
func (s *Serving) wanted() (want, bool) {
	if s.m.cfg.Addresses == nil {
		return want{}, false
	}
	addresses := s.m.cfg.Addresses()
	return servingWant(s.m.cfg.NodeName, addresses), len(addresses) > 0
}

// good says whether the certificate in use is for all that is wanted, and not about to end.
func (s *Serving) good(w want) bool {
	c := s.current.Load()
	return c != nil && w.satisfied(c.Leaf) == nil && s.m.now().Before(renewAt(c.Leaf))
}

var errReaddressed = errors.New("the node has other addresses now")

func (s *Serving) ask(ctx context.Context, w want) error {
	if err := s.m.client.Ready(ctx); err != nil {
		return err
	}
	attempt, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.readdressed(attempt, w, cancel)
	}()
	defer func() { <-done }()
	defer cancel(nil)
	told := ""
	i := issue{
		store: s.store, want: w, client: s.m.client, now: s.m.now,
		waits: func(name string) {
			if told != name {
				s.m.log.Info("serving certificate waits for approval", "command", "kubectl certificate approve "+name)
			}
			told = name
			s.tell("certificate request " + name + " waits for approval: kubectl certificate approve " + name)
		},
	}
	pair, err := i.run(attempt)
	if err != nil {
		if errors.Is(context.Cause(attempt), errReaddressed) {
			return errReaddressed
		}
		return err
	}
	s.current.Store(pair)
	s.m.log.Info("cluster has signed the serving certificate", "until", pair.Leaf.NotAfter)
	return s.store.forget()
}

// readdressed ends an attempt when another certificate is wanted.
func (s *Serving) readdressed(ctx context.Context, before want, end context.CancelCauseFunc) {
	for ctx.Err() == nil {
		s.wait(ctx, addressesEvery)
		if now, ok := s.wanted(); ok && ctx.Err() == nil && !now.same(before) {
			end(errReaddressed)
			return
		}
	}
}

func (s *Serving) wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-s.readdr:
	}
}

// subscribe has the kernel tell when addresses come or go.
func (s *Serving) subscribe(ctx context.Context) {
	updates := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		s.m.log.Warn("new addresses are looked for once a minute only", "error", err)
		return
	}
	go func() { // it ends with the subscription
		for u := range updates {
			if u.Scope == unix.RT_SCOPE_UNIVERSE { // every pod has addresses of the link
				s.Readdressed()
			}
		}
	}()
}

// Readdressed has the addresses looked at now.
func (s *Serving) Readdressed() {
	select {
	case s.readdr <- struct{}{}:
	default:
	}
}

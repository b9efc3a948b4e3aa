package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Phase is how a node and its API server stand to each other.
type Phase string

// The phases.
const (
	NotJoined        Phase = "NotJoined"        // there are no credentials, and nothing to have them with
	Requesting       Phase = "Requesting"       // a certificate is asked for
	WaitingApproval  Phase = "WaitingApproval"  // it was asked for, and nobody has said yes
	Denied           Phase = "Denied"           // somebody has said no
	CertificateEnded Phase = "CertificateEnded" // by this machine's clock
	NotYetValid      Phase = "NotYetValid"      // by this machine's clock
	Unauthorized     Phase = "Unauthorized"     // the API server does not know the credentials
	Unreachable      Phase = "Unreachable"
	Connecting       Phase = "Connecting" // there are credentials, and the API server was not asked yet
	Joined           Phase = "Joined"
)

// State is how a node and its API server stand to each other, for people.
type State struct {
	Phase    Phase     `json:"phase"`
	Since    time.Time `json:"since,omitzero"`
	Message  string    `json:"message,omitempty"` // what is the matter, and what to do
	Server   string    `json:"server,omitempty"`  // "": none yet
	NotAfter time.Time `json:"notAfter,omitzero"` // of the client certificate; zero: there is none
	Serving  string    `json:"serving,omitempty"` // what the serving certificate waits for; "": nothing
}

// standing is what the state follows from. It is safe for concurrent use.
type standing struct {
	log *slog.Logger
	now func() time.Time

	mu     sync.Mutex
	facts  facts
	told   State
	refuse chan struct{} // hears that the API server begins to refuse the credentials
}

// facts are what is known, each written by one who knows it.
type facts struct {
	server string
	pair   *tls.Certificate
	usable bool   // there is a route
	lack   error  // why there is none
	asking Phase  // Requesting, WaitingApproval, Denied; "": nothing is asked for
	about  string // of that
	renews bool   // somebody can ask for another certificate

	serving string // what the serving certificate waits for

	asked        bool // the API server, over the route of now
	unreachable  error
	unauthorized bool
	since        time.Time // of the last two
}

// derive says what the facts come to, pure.
func (f *facts) derive(now time.Time) (Phase, string) {
	ended := f.pair != nil && now.After(f.pair.Leaf.NotAfter)
	early := f.pair != nil && now.Before(f.pair.Leaf.NotBefore)
	switch {
	case f.asking != "" && (!f.usable || ended || f.unauthorized):
		return f.asking, f.about
	case !f.usable && f.lack != nil:
		return NotJoined, clip(f.lack.Error())
	case !f.usable:
		return NotJoined, "there are no credentials for an API server"
	case ended:
		m := fmt.Sprintf("the client certificate has ended at %s, and this machine's clock says %s", stamp(f.pair.Leaf.NotAfter), stamp(now))
		if !f.renews {
			m += ": set the clock if it is wrong, else put a new kubeconfig in place, or a --bootstrap-kubeconfig with a token " +
				"that is good"
		}
		return CertificateEnded, m
	case early:
		return NotYetValid, fmt.Sprintf("the client certificate begins at %s, and this machine's clock says %s: set the clock",
			stamp(f.pair.Leaf.NotBefore), stamp(now))
	case f.unauthorized:
		return Unauthorized, "the API server does not take the credentials of the kubeconfig: put one in place that it knows"
	case f.unreachable != nil:
		return Unreachable, clip(f.unreachable.Error())
	case !f.asked:
		return Connecting, f.about
	}
	return Joined, f.about
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// set changes the facts, and tells of what they come to now when it is another phase.
func (s *standing) set(change func(*facts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.facts)
	s.tell()
}

// tell logs a change of the phase, once. What is about to be asked for is told when it was.
func (s *standing) tell() State {
	now := s.now()
	phase, message := s.facts.derive(now)
	before := s.told
	s.told = State{Phase: phase, Since: before.Since, Message: message, Server: s.facts.server, Serving: s.facts.serving}
	if s.facts.pair != nil {
		s.told.NotAfter = s.facts.pair.Leaf.NotAfter
	}
	if phase == before.Phase {
		return s.told
	}
	s.told.Since = now
	attrs := []any{"phase", string(phase), "server", s.facts.server}
	if message != "" {
		attrs = append(attrs, "message", message)
	}
	s.log.Log(context.Background(), phase.level(), phase.title(), attrs...)
	return s.told
}

// title is what the log says when a phase begins.
func (p Phase) title() string {
	switch p {
	case Joined:
		return "API server knows this node"
	case Requesting, Connecting:
		return "API server is about to be asked"
	case WaitingApproval:
		return "client certificate waits for approval"
	case Denied:
		return "client certificate was denied"
	case CertificateEnded, NotYetValid:
		return "client certificate is not good by this machine's clock"
	case Unauthorized:
		return "API server does not know this node"
	case Unreachable:
		return "API server does not answer"
	}
	return "node has not joined its cluster"
}

func (p Phase) level() slog.Level {
	switch p {
	case Joined, WaitingApproval:
		return slog.LevelInfo
	case Requesting, Connecting, Denied: // the last is told by who has asked
		return slog.LevelDebug
	}
	return slog.LevelError
}

// state is what the facts come to now: the clock goes on, and may have jumped.
func (s *standing) state() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tell()
}

// seen takes note of what became of a request. It is called for each, so that it does nothing when it is as before.
func (s *standing) seen(status int, err error) {
	refused := status == http.StatusUnauthorized
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.facts
	began := refused && !f.unauthorized
	if f.asked && (err != nil) == (f.unreachable != nil) && (err != nil || refused == f.unauthorized) {
		return
	}
	f.asked, f.unreachable, f.since = true, err, s.now()
	if err == nil {
		f.unauthorized = refused
	}
	s.tell()
	if began {
		select {
		case s.refuse <- struct{}{}:
		default:
		}
	}
}

// refused says since when the API server refuses the credentials; zero: it does not.
func (s *standing) refused() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.facts.unauthorized {
		return time.Time{}
	}
	return s.facts.since
}

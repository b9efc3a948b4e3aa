package token

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// Keeper keeps tokens over the machine's end, sealed.
type Keeper interface {
	// Hand keeps something of a pod under a name, and waits until that is on the disk, or cannot be for now.
	Hand(ctx context.Context, uid types.UID, name string, data []byte)
	// Handed is what was kept.
	Handed(uid types.UID, name string) ([]byte, bool)
}

const (
	// keepTimeout is how long a token waits for a disk that hangs.
	keepTimeout = 3 * time.Second
	// keptTimeout is how long the API server has for an answer where there is a token that was kept.
	keptTimeout = 2 * time.Second
)

type keptToken struct {
	Text    string    `json:"text"`
	Expires time.Time `json:"expires"`
}

func (w Want) keptName() string { return fmt.Sprintf("token %q %d %t", w.Audience, w.Seconds, w.Once) }

// keep keeps a token before anybody has it, where anything is kept.
func (m *Manager) keep(ctx context.Context, e *entry, t Token) {
	if m.cfg.Keep == nil {
		return
	}
	text, err := json.Marshal(keptToken(t))
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	m.cfg.Keep.Hand(ctx, e.pod.UID, e.want.keptName(), text)
}

// kept is the token that was kept.
func (m *Manager) kept(e *entry) (Token, bool) {
	if m.cfg.Keep == nil {
		return Token{}, false
	}
	text, ok := m.cfg.Keep.Handed(e.pod.UID, e.want.keptName())
	if !ok {
		return Token{}, false
	}
	var t keptToken
	if err := json.Unmarshal(text, &t); err != nil || t.Text == "" {
		return Token{}, false
	}
	return Token(t), true
}

// refused says whether the API server will not make a token, which is not to be had from anywhere else then.
func refused(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsConflict(err)
}

// fallBack has a pod have the token that was kept, when the API server makes none for now. One that has ended does too:
// the pod may not need it, and does not start without. The lock is held.
func (m *Manager) fallBack(e *entry, why error, now time.Time) bool {
	if refused(why) {
		if e.ended {
			e.ended, e.good = false, now
		}
		return false
	}
	if e.good.After(now) {
		return false
	}
	t, ok := m.kept(e)
	if !ok {
		return false
	}
	left := time.Until(t.Expires)
	e.token, e.ended = t, left <= 0
	if e.ended {
		left = maxLife
		m.cfg.Log.Warn("API server makes no token, and the pod is given the one that it had, which has ended: it is renewed when the "+
			"server answers", "pod", e.pod.Namespace+"/"+e.pod.Name, "uid", string(e.pod.UID), "audience", e.want.Audience,
			"ended", t.Expires, "error", why)
	}
	e.good = now.Add(min(left, maxLife))
	m.ring()
	return true
}

// Again has every token that could not be had be asked for now: the API server is back.
func (m *Manager) Again() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, all := range m.pods {
		for _, e := range all {
			if e.fails > 0 {
				e.due = now
			}
		}
	}
	m.ring()
}

package token

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-node/berth/agent/issued"
)

// keptTimeout is how long the API server has for an answer where there is a token that was kept.
const keptTimeout = 2 * time.Second

type keptToken struct {
	Text    string    `json:"text"`
	Expires time.Time `json:"expires"`
}

func (w Want) keptName() string { return fmt.Sprintf("token %q %d %t", w.Audience, w.Seconds, w.Once) }

// keep keeps a token before anybody has it, where anything is kept.
func (m *Manager) keep(ctx context.Context, e *entry, t Token) {
	issued.Keep(ctx, m.cfg.Keep, e.pod.UID, e.want.keptName(), keptToken(t))
}

// kept is the token that was kept.
func (m *Manager) kept(e *entry) (Token, bool) {
	var t keptToken
	if !issued.Kept(m.cfg.Keep, e.pod.UID, e.want.keptName(), &t) || t.Text == "" {
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

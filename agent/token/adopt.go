package token

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Adopt takes a token that the pod has been given by an agent before this one, for where the server makes none at the
// moment: it is the pod's until there is another one, which is asked for. It is false of one that is no token or has
// ended. Whether it is good only the server knows, and it need not: a pod has not more than it had.
func (m *Manager) Adopt(pod *corev1.Pod, want Want, text string) (Token, bool) {
	ends, ok := expiry(text)
	left := time.Until(ends)
	if !ok || left <= 0 {
		return Token{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, now := m.entry(pod, want), time.Now()
	if e.good.After(now) {
		return e.token, true
	}
	e.token = Token{text, ends}
	e.due, e.good = now.Add(pause(nil, 1)), now.Add(min(left, maxLife))
	m.ring()
	return e.token, true
}

// expiry is when a token ends by its own word (RFC 7519, section 4.1.4).
func expiry(text string) (time.Time, bool) {
	parts := strings.Split(text, ".")
	if len(text) > maxToken || len(parts) != 3 {
		return time.Time{}, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}, false
	}
	var claims struct {
		Exp int64 `json:"exp"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.Exp <= 0 {
		return time.Time{}, false
	}
	return time.Unix(claims.Exp, 0), true
}

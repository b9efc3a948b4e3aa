// Package bootstraptoken is what bootstrap tokens need but to be recognized: their end, and the ConfigMap cluster-info
// by which who has a token knows the cluster, signed with each of them.
package bootstraptoken

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	secretPrefix = "bootstrap-token-"
	idLength     = 6
	secretLength = 16
)

// token is a bootstrap token as its Secret has it.
type token struct{ id, secret string }

// expiry is when a token ends. It is zero for one that does not, and long ago for one whose time cannot be read, which
// nobody takes either.
func expiry(s *corev1.Secret) time.Time {
	text := string(s.Data["expiration"])
	if text == "" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Unix(0, 0)
	}
	return at
}

// isToken says whether a Secret is a bootstrap token.
func isToken(s *corev1.Secret) bool { return s.Type == corev1.SecretTypeBootstrapToken }

// signing is the token of a Secret, if it may sign at some time.
func signing(s *corev1.Secret, now time.Time) (token, bool) {
	t := token{string(s.Data["token-id"]), string(s.Data["token-secret"])}
	if !isToken(s) || s.DeletionTimestamp != nil || s.Name != secretPrefix+t.id || len(t.id) != idLength || len(t.secret) != secretLength {
		return t, false
	}
	if strings.Trim(t.id+t.secret, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return t, false
	}
	if at := expiry(s); !at.IsZero() && !now.Before(at) {
		return t, false
	}
	return t, string(s.Data["usage-bootstrap-signing"]) == "true"
}

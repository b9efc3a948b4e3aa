package auth

import (
	"context"
	"crypto/subtle"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// Bootstrap tokens are ID.SECRET: nodes that join have nothing else to show (Secrets bootstrap-token-ID of
// kube-system).
const (
	bootstrapPrefix = "bootstrap-token-"
	bootstrapUser   = "system:bootstrap:"
	bootstrapGroup  = "system:bootstrappers"
)

type bootstrapAuthenticator struct {
	secrets corelisters.SecretLister
	now     func() time.Time
}

// AuthenticateToken has no opinion of what looks like no bootstrap token, or is none that may be used now. No error
// tells which of it is so.
func (b *bootstrapAuthenticator) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	id, secret, ok := splitBootstrap(token)
	if !ok {
		return nil, false, nil
	}
	s, err := b.secrets.Secrets(metav1.NamespaceSystem).Get(bootstrapPrefix + id)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("find bootstrap token %s: %w", id, err)
	}
	groups, ok := bootstrapGroups(s, id, secret, b.now())
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: bootstrapUser + id, Groups: groups}}, true, nil
}

// splitBootstrap parts [a-z0-9]{6}.[a-z0-9]{16}.
func splitBootstrap(token string) (id, secret string, ok bool) {
	id, secret, ok = strings.Cut(token, ".")
	plain := func(s string) bool { return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == "" }
	return id, secret, ok && len(id) == 6 && len(secret) == 16 && plain(id) && plain(secret)
}

// bootstrapGroups are those that a token gives, if it may be used.
func bootstrapGroups(s *corev1.Secret, id, secret string, now time.Time) ([]string, bool) {
	field := func(name string) string { return string(s.Data[name]) }
	switch {
	case s.DeletionTimestamp != nil, s.Type != corev1.SecretTypeBootstrapToken,
		subtle.ConstantTimeCompare(s.Data["token-secret"], []byte(secret)) != 1,
		field("token-id") != id, field("usage-bootstrap-authentication") != "true":
		return nil, false
	}
	if end := field("expiration"); end != "" {
		// What cannot be read is no leave to go on for ever.
		if at, err := time.Parse(time.RFC3339, end); err != nil || !now.Before(at) {
			return nil, false
		}
	}
	groups := []string{bootstrapGroup}
	if extra := field("auth-extra-groups"); extra != "" {
		form := regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]$`)
		for group := range strings.SplitSeq(extra, ",") {
			// Any other group would let who may write Secrets of kube-system be system:masters.
			if !form.MatchString(group) {
				return nil, false
			}
			groups = append(groups, group)
		}
	}
	return groups, true
}

package auth

import (
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// kept is a server that has a service account and a secret with a token of it.
func kept(t *testing.T, change func(a *corev1.ServiceAccount, s *corev1.Secret)) (a *Auth, client *fake.Clientset, token string) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: meta("ns", "robot")}
	secret := &corev1.Secret{ObjectMeta: meta("ns", "kept"), Type: corev1.SecretTypeServiceAccountToken}
	key := newKey(t)
	signs, _ := start(t, Options{ServiceAccountKey: key})
	token, err := signs.SecretToken(account, "kept")
	if err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte(token)}
	if change != nil {
		change(account, secret)
	}
	a, client = start(t, Options{ServiceAccountKey: key}, account, secret)
	return a, client, token
}

// TestSecretTokens has a token be good as long as its secret has it and its account is there, and no longer.
func TestSecretTokens(t *testing.T) {
	now := metav1.Now()
	for name, change := range map[string]func(a *corev1.ServiceAccount, s *corev1.Secret){
		"the secret has another token": func(_ *corev1.ServiceAccount, s *corev1.Secret) { s.Data["token"] = []byte("another") },
		"the secret has none":          func(_ *corev1.ServiceAccount, s *corev1.Secret) { s.Data = nil },
		"the secret is gone":           func(_ *corev1.ServiceAccount, s *corev1.Secret) { s.Name = "other" },
		"the secret is elsewhere":      func(_ *corev1.ServiceAccount, s *corev1.Secret) { s.Namespace = "elsewhere" },
		"the secret is being deleted": func(_ *corev1.ServiceAccount, s *corev1.Secret) {
			s.DeletionTimestamp, s.Finalizers = &now, []string{"x/y"}
		},
		"the account is gone":       func(a *corev1.ServiceAccount, _ *corev1.Secret) { a.Name = "other" },
		"the account was made anew": func(a *corev1.ServiceAccount, _ *corev1.Secret) { a.UID = "new" },
		"the account is being deleted": func(a *corev1.ServiceAccount, _ *corev1.Secret) {
			a.DeletionTimestamp, a.Finalizers = &now, []string{"x/y"}
		},
		"it was not used for two years": func(_ *corev1.ServiceAccount, s *corev1.Secret) {
			s.Labels = map[string]string{legacyInvalid: "2020-01-01"}
		},
		"it is not valid, and of no day": func(_ *corev1.ServiceAccount, s *corev1.Secret) { s.Labels = map[string]string{legacyInvalid: "x"} },
	} {
		a, _, token := kept(t, change)
		if r, ok, err := a.Authenticator().AuthenticateRequest(requestOf(token)); ok || err == nil {
			t.Errorf("%s: %v comes in, %v", name, r, err)
		}
	}
	a, client, token := kept(t, nil)
	r, ok, err := a.Authenticator().AuthenticateRequest(requestOf(token))
	if !ok || err != nil || r.User.GetName() != "system:serviceaccount:ns:robot" || r.User.GetUID() != "robot-uid" {
		t.Fatalf("%v, %v, %v", r, ok, err)
	}
	secret, err := client.CoreV1().Secrets("ns").Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil || secret.Labels[legacyLastUsed] != time.Now().UTC().Format(legacyDay) {
		t.Errorf("its use is noted as %v, %v", secret.Labels, err)
	}
	client.ClearActions()
	if _, ok, err := a.Authenticator().AuthenticateRequest(requestOf(token)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, did := range client.Actions() {
		if did.GetVerb() == "patch" {
			t.Error("its use is noted twice on a day")
		}
	}
	// It is for this API, and for nobody else.
	for audience, good := range map[string]bool{issuer: true, "https://elsewhere.example.org": false} {
		q := requestOf(token)
		q = q.WithContext(authenticator.WithAudiences(q.Context(), authenticator.Audiences{audience}))
		if r, ok, _ := a.Authenticator().AuthenticateRequest(q); ok != good {
			t.Errorf("for %s: %v, %v", audience, r, ok)
		}
	}
}

// TestForgedSecretTokens has nobody come in with what no key of the cluster has signed, though a secret has it.
func TestForgedSecretTokens(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: meta("ns", "robot")}
	key := newKey(t)
	own, err := newSigner(issuer, key)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := newSigner(issuer, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	claims := legacyClaims{
		Claims:    jwt.Claims{Issuer: legacyIssuer, Subject: "system:serviceaccount:ns:robot"},
		Namespace: "ns", Secret: "kept", Account: "robot", UID: "robot-uid",
	}
	sign := func(s *signer, change func(*legacyClaims)) string {
		c := claims
		if change != nil {
			change(&c)
		}
		token, err := jwt.Signed(*s.signer.Load()).Claims(c).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	good := sign(own, nil)
	parts := strings.Split(good, ".")
	for name, token := range map[string]string{
		"another key's":          sign(foreign, nil),
		"of another account":     sign(own, func(c *legacyClaims) { c.Account = "admin" }),
		"of another subject":     sign(own, func(c *legacyClaims) { c.Subject = "system:serviceaccount:kube-system:admin" }),
		"without an account":     sign(own, func(c *legacyClaims) { c.Account, c.Subject = "", "system:serviceaccount:ns:" }),
		"without a UID":          sign(own, func(c *legacyClaims) { c.UID = "" }),
		"without a secret":       sign(own, func(c *legacyClaims) { c.Secret = "" }),
		"without a signature":    parts[0] + "." + parts[1] + ".",
		"with another signature": parts[0] + "." + parts[1] + "." + strings.Split(sign(foreign, nil), ".")[2],
	} {
		secret := &corev1.Secret{
			ObjectMeta: meta("ns", "kept"), Type: corev1.SecretTypeServiceAccountToken,
			Data: map[string][]byte{corev1.ServiceAccountTokenKey: []byte(token)},
		}
		admin := &corev1.ServiceAccount{ObjectMeta: meta("ns", "admin")}
		a, _ := start(t, Options{ServiceAccountKey: key}, account, admin, secret)
		if r, ok, _ := a.Authenticator().AuthenticateRequest(requestOf(token)); ok {
			t.Errorf("%s: %v comes in", name, r)
		}
	}
}

// TestSecretTokenNoted: where the store takes no writes, who comes with a token comes in all the same; where the secret
// has become another one meanwhile, nobody does.
func TestSecretTokenNoted(t *testing.T) {
	resource := schema.GroupResource{Resource: "secrets"}
	for _, c := range []struct {
		err  error
		good bool
	}{{apierrors.NewServerTimeout(resource, "patch", 1), true}, {apierrors.NewConflict(resource, "kept", nil), false}, {apierrors.NewNotFound(resource, "kept"), false}} {
		a, client, token := kept(t, nil)
		client.PrependReactor("patch", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.err })
		if _, ok, err := a.Authenticator().AuthenticateRequest(requestOf(token)); ok != c.good {
			t.Errorf("with %v: %v, %v", c.err, ok, err)
		}
	}
}

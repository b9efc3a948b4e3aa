package auth

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestTokensAreVerifiedOnce has a token verified once for each set of keys, and one that is not good each time.
func TestTokensAreVerifiedOnce(t *testing.T) {
	key, next := newKey(t), newKey(t)
	of, err := newKeys([]any{key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	signs, err := newSigner(issuer, key)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := Claims(&corev1.ServiceAccount{ObjectMeta: meta("ns", "robot")}, Bindings{}, []string{issuer}, 3600, 0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	good, err := signs.Generate(t.Context(), claims)
	if err != nil {
		t.Fatal(err)
	}
	a := &tokenAuthenticator{issuer: issuer, keys: of, signed: newSignedTokens()}
	verified := 0
	read := func(token string) (signedToken, bool, error) {
		verified++
		return a.read(token)
	}
	want := func(what, token string, good, anew bool) {
		t.Helper()
		before := verified
		says, ok, err := a.signed.read(token, of, read)
		if ok != good || ok && (err != nil || says.claims.Subject != claims.Subject || says.keyID == "") {
			t.Errorf("%s: says %+v, %t, %v", what, says, ok, err)
		}
		if is := verified > before; is != anew {
			t.Errorf("%s: verified is %t", what, is)
		}
	}
	set := func(all ...any) {
		t.Helper()
		if err := of.set(all); err != nil {
			t.Fatal(err)
		}
	}
	want("the first time", good, true, true)
	want("again", good, true, false)
	want("a wrong one", good[:len(good)-4]+"AAAA", false, true)
	want("a wrong one again", good[:len(good)-4]+"AAAA", false, true)
	set(next.Public())
	want("with another key", good, false, true)
	set(next.Public(), key.Public())
	want("with both", good, true, true)
	want("with both again", good, true, false)
}

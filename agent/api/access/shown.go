package access

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Certificates authenticates by client certificates: the common name is the user, the organizations are the groups.
type Certificates struct {
	Roots func() *x509.CertPool // nil: certificates say nothing
}

// Authenticate implements [Authenticator].
func (c Certificates) Authenticate(r *http.Request) (*User, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	leaf := r.TLS.PeerCertificates[0]
	opts := x509.VerifyOptions{
		Roots: c.Roots(), Intermediates: x509.NewCertPool(), CurrentTime: time.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if opts.Roots == nil {
		return nil, nil
	}
	for _, i := range r.TLS.PeerCertificates[1:] {
		opts.Intermediates.AddCert(i)
	}
	if _, err := leaf.Verify(opts); err != nil {
		return nil, fmt.Errorf("verify client certificate of %q: %w", leaf.Subject.CommonName, err)
	}
	if leaf.Subject.CommonName == "" {
		return nil, errors.New("client certificate names nobody")
	}
	uid, err := certificateUID(leaf)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(leaf.Raw)
	return &User{
		Name: leaf.Subject.CommonName, UID: uid, Groups: leaf.Subject.Organization,
		Extra: map[string][]string{credentialID: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}, nil
}

// credentialID is the key by which API servers tell with which certificate or token somebody came.
const credentialID = "authentication.kubernetes.io/credential-id"

// uidAttribute is the attribute of a certificate's subject that API servers read a user's UID from.
var uidAttribute = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}

func certificateUID(c *x509.Certificate) (string, error) {
	var out string
	for _, n := range c.Subject.Names {
		if !n.Type.Equal(uidAttribute) {
			continue
		}
		uid, ok := n.Value.(string)
		if !ok || uid == "" || out != "" {
			return "", fmt.Errorf("client certificate of %q: its subject must have at most one UID, which must be a text",
				c.Subject.CommonName)
		}
		out = uid
	}
	return out, nil
}

// tokenProtocol begins what a client names beside the protocols of a WebSocket to show a token: browsers can send no
// other header.
const tokenProtocol = "base64url.bearer.authorization.k8s.io."

const protocolHeader = "Sec-Websocket-Protocol"

// byToken authenticates by the token that a request shows. From a request of somebody who is known the token is taken
// away, so that it gets to nobody else.
func byToken(r *http.Request, ask func(token string) (*User, error)) (*User, error) {
	if token := bearer(r); token != "" {
		user, err := ask(token)
		if user != nil {
			r.Header.Del("Authorization")
		}
		return user, err
	}
	token, others, err := webSocketToken(r)
	if token == "" || err != nil {
		return nil, err
	}
	user, err := ask(token)
	if user != nil {
		r.Header.Set(protocolHeader, strings.Join(others, ","))
	}
	return user, err
}

// bearer is the token of a request, "" without one.
func bearer(r *http.Request) string {
	scheme, token, ok := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// webSocketToken is the token of a WebSocket, "" without one, and the protocols beside it.
func webSocketToken(r *http.Request) (token string, others []string, err error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return "", nil, nil
	}
	for _, line := range r.Header.Values(protocolHeader) {
		for p := range strings.SplitSeq(line, ",") {
			p = strings.TrimSpace(p)
			encoded, is := strings.CutPrefix(p, tokenProtocol)
			if !is {
				others = append(others, p)
				continue
			}
			text, err := base64.RawURLEncoding.DecodeString(encoded)
			switch {
			case token != "":
				return "", nil, errors.New("a WebSocket with several tokens")
			case err != nil || len(text) == 0 || !utf8.Valid(text):
				return "", nil, errors.New("a WebSocket's token must be base64 without padding, as in URLs")
			}
			token = string(text)
		}
	}
	// The server names one of the protocols in its answer, which must not be the token.
	if token != "" && !slices.ContainsFunc(others, func(p string) bool { return p != "" }) {
		return "", nil, errors.New("a WebSocket with a token must name a protocol beside it")
	}
	return token, others, nil
}

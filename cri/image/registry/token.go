package registry

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// maxToken is how big the answer of a token server may be: the tokens of large registries take some KiB.
const maxToken = 256 << 10

// authorizer makes one that shows auth, in exchange for a token where the registry wants that.
func (c *Client) authorizer(h *host, auth *Auth) docker.Authorizer {
	client := &http.Client{Transport: &tokenTransport{host: h}, CheckRedirect: checkTokenRedirect}
	return docker.NewDockerAuthorizer(docker.WithAuthClient(client),
		docker.WithAuthHeader(http.Header{"User-Agent": {c.cfg.UserAgent}}),
		docker.WithAuthCreds(func(asking string) (string, string, error) {
			if auth == nil || !auth.For(h.Host) || asking != h.Host {
				return "", "", nil
			}
			if auth.IdentityToken != "" {
				return "", auth.IdentityToken, nil
			}
			return auth.Username, auth.Password, nil
		}))
}

// tokenTransport sends the requests for tokens of one registry's host, redirected ones too. The realm of a challenge
// may be anywhere, and who answers there is told as little as will do.
type tokenTransport struct{ host *host }

func (t *tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	h := t.host
	own := req.URL.Host == h.Host && (req.URL.Scheme == h.Scheme || h.plain)
	secret := req.Header.Get("Authorization") != "" || req.Body != nil
	if secret && req.URL.Scheme != "https" && !h.plain && !isLoopback(req.URL.Host) {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, fmt.Errorf("refused to show credentials to %s without TLS, where %s sends them", req.URL.Host,
			h.Host)
	}
	base := http.RoundTripper(h.transport)
	if own {
		base = h.Client.Transport
		if len(h.Header) > 0 {
			req = req.Clone(req.Context())
			for k, v := range h.Header {
				if len(req.Header.Values(k)) == 0 {
					req.Header[k] = v
				}
			}
		}
	}
	resp, err := base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Status = printable(resp.Status)
	resp.Body = &bounded{ReadCloser: resp.Body, left: maxToken}
	return resp, nil
}

// checkTokenRedirect keeps what a token server is shown from where it sends us. A 307 or 308 repeats the request with
// its body, which is where the password is; the library takes all redirects as the standard library does.
func checkTokenRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= 5 {
		return errors.New("5 redirects in a row")
	}
	first := via[0].URL
	if via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return fmt.Errorf("refused to be sent from https to %s", req.URL.Scheme)
	}
	if req.URL.Scheme == first.Scheme && req.URL.Host == first.Host {
		return nil
	}
	// The same server, now with TLS.
	if first.Scheme == "http" && req.URL.Scheme == "https" && req.URL.Hostname() == first.Hostname() &&
		first.Port() == "" && req.URL.Port() == "" {
		return nil
	}
	if req.Body != nil && req.Body != http.NoBody {
		return fmt.Errorf("refused to send credentials on to %s, where %s redirects", req.URL.Host, first.Host)
	}
	keep(req, "Accept", "User-Agent")
	return nil
}

// keep drops all headers but some.
func keep(req *http.Request, names ...string) {
	kept := http.Header{}
	for _, k := range names {
		if v := req.Header.Values(k); len(v) > 0 {
			kept[k] = v
		}
	}
	req.Header = kept
}

// bounded is a body that fails where it is longer than it may be.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		var one [1]byte
		if n, err := b.ReadCloser.Read(one[:]); n == 0 {
			return 0, err
		}
		return 0, lie("answer of more than %d bytes", maxToken)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// For says whether the credentials are for a host. Without an address they are for all hosts that the configuration
// names for the image's registry: a private mirror wants the same. With one they are for the host of that address
// alone, and so for no mirror of it.
func (a *Auth) For(host string) bool {
	return a.ServerAddress == "" || canonical(a.ServerAddress) == canonical(host)
}

// canonical makes the many ways to write the address of a registry one.
func canonical(address string) string {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		scheme, rest = "", address
	}
	rest, _, _ = strings.Cut(rest, "/")
	rest = strings.ToLower(rest)
	switch strings.ToLower(scheme) {
	case "http":
		rest = strings.TrimSuffix(rest, ":80")
	default:
		rest = strings.TrimSuffix(rest, ":443")
	}
	switch rest {
	case "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		return "docker.io"
	}
	return rest
}

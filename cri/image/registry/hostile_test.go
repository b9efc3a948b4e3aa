package registry

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distribution/reference"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// bystander is a server that is to be told nothing. It answers as a token server that takes anybody.
func bystander(t *testing.T) (url string, told func() []string) {
	t.Helper()
	var seen []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for k, v := range r.Header {
			seen = append(seen, k+": "+strings.Join(v, ","))
		}
		seen = append(seen, string(body), r.URL.String())
		_, _ = io.WriteString(w, `{"token":"theirs","access_token":"theirs"}`)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string {
		s.Close()
		return seen
	}
}

// challenge guards a registry with tokens of a realm.
func challenge(realm string) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="s"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	}
}

func wantUntold(t *testing.T, name string, told []string) {
	t.Helper()
	for _, line := range told {
		for _, secret := range []string{"secret", "identity", "Authorization", "X-Secret", "bWU6c2VjcmV0"} {
			if strings.Contains(line, secret) {
				t.Errorf("%s: a stranger was told %q", name, line)
			}
		}
	}
}

// TestTokenRedirect: a token server that sends us on with a 307 or 308 wants the request again with its body, which has
// the password.
func TestTokenRedirect(t *testing.T) {
	for _, code := range []int{301, 302, 303, 307, 308} {
		for kind, auth := range map[string]*Auth{
			"password":       {Username: "me", Password: "secret"},
			"identity token": {IdentityToken: "identity"},
		} {
			for _, refusesPost := range []bool{false, true} {
				name := fmt.Sprint(code, " ", kind, " ", refusesPost)
				away, told := bystander(t)
				tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					// so that the library tries a GET with the password in a header
					if refusesPost && r.Method == http.MethodPost {
						w.WriteHeader(http.StatusNotFound)
						return
					}
					http.Redirect(w, r, away+"/token", code)
				}))
				reg := pushed(t)
				reg.Fault(challenge(tokens.URL + "/token"))
				_, err := open(t, reg.Host, auth).Tag(t.Context(), "v1")
				if code >= 307 && !refusesPost &&
					(err == nil || !strings.Contains(err.Error(), "refused to send credentials on")) {
					t.Errorf("%s: error is %v", name, err)
				}
				tokens.Close()
				wantUntold(t, name, told())
			}
		}
	}
}

// TestTokenRedirectAtHome: on the same server a redirect is followed, with what the request had.
func TestTokenRedirectAtHome(t *testing.T) {
	var got string
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			http.Redirect(w, r, "/v2/token", http.StatusPermanentRedirect)
			return
		}
		got = r.FormValue("password")
		_, _ = io.WriteString(w, `{"access_token":"t"}`)
	}))
	defer tokens.Close()
	reg := pushed(t)
	reg.Fault(challenge(tokens.URL + "/token"))
	wantBlob(t, open(t, reg.Host, &Auth{Username: "me", Password: "secret"}))
	if got != "secret" {
		t.Errorf("the password that came is %q", got)
	}
}

// TestHeaderStaysAtHome: what hosts.toml has as headers of a host is for that host, not for the realm that it names,
// unless that is there.
func TestHeaderStaysAtHome(t *testing.T) {
	for _, auth := range []*Auth{nil, {Username: "me", Password: "secret"}} {
		dir := t.TempDir()
		reg := pushed(t)
		var asked atomic.Int32
		with := func(c *Config) { c.HostsDir = dir }
		writeHosts(t, dir, reg.Host,
			fmt.Sprintf("server = 'http://%s'\n[header]\nX-Secret = 'header'\nAuthorization = 'Basic aGVhZGVy'\n",
				reg.Host))
		away, told := bystander(t)
		fault := func(realm string) func(http.ResponseWriter, *http.Request, http.Handler) {
			return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				switch {
				case r.Header.Get("X-Secret") != "header":
					w.WriteHeader(http.StatusForbidden)
				case r.URL.Path == "/token":
					asked.Add(1)
					_, _ = io.WriteString(w, `{"token":"ours","access_token":"ours"}`)
				case !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer "):
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`/token",service="s"`)
					w.WriteHeader(http.StatusUnauthorized)
				default:
					next.ServeHTTP(w, r)
				}
			}
		}
		reg.Fault(fault(away))
		wantBlob(t, open(t, reg.Host, auth, with))
		lines := told()
		if auth == nil {
			wantUntold(t, "realm elsewhere", lines)
		} else if all := strings.Join(lines, "\n"); strings.Contains(all, "X-Secret") ||
			strings.Contains(all, "aGVhZGVy") {
			t.Errorf("realm elsewhere: a stranger was told %q", all)
		}
		reg.Fault(fault("http://" + reg.Host))
		wantBlob(t, open(t, reg.Host, auth, with))
		if asked.Load() == 0 {
			t.Error("the realm at the registry itself was not asked")
		}
	}
}

// TestMirrorsAndAddresses: credentials that are said to be for one server are not shown to another that stands in for
// it.
func TestMirrorsAndAddresses(t *testing.T) {
	mirror := pushed(t)
	dir := t.TempDir()
	writeHosts(t, dir, "registry.test", "server = 'http://127.0.0.1:1'\n[host.'http://"+mirror.Host+"']\n")
	ref, err := reference.ParseNormalizedNamed("registry.test/dir/big")
	if err != nil {
		t.Fatal(err)
	}
	var shown atomic.Int32
	mirror.Fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Authorization") != "" {
			shown.Add(1)
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="mirror"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	for _, c := range []struct {
		auth Auth
		want bool
	}{
		{Auth{Username: "me", Password: "secret", ServerAddress: "registry.test"}, false},
		{Auth{Username: "me", Password: "secret", ServerAddress: "https://registry.test/v2/"}, false},
		{Auth{RegistryToken: "secret", ServerAddress: "registry.test"}, false},
		{Auth{IdentityToken: "identity", ServerAddress: "registry.test"}, false},
		{Auth{Username: "me", Password: "secret", ServerAddress: mirror.Host}, true},
		{Auth{Username: "me", Password: "secret"}, true},
	} {
		shown.Store(0)
		r, err := New(Config{HostsDir: dir, Backoff: 1, Attempts: 1}).Repository(t.Context(), ref, &c.auth)
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Tag(t.Context(), "v1")
		if r.Close(); (err == nil) != c.want || (shown.Load() > 0) != c.want {
			t.Errorf("%+v: shown to the mirror %d times, %v", c.auth, shown.Load(), err)
		}
	}
}

// TestTLSStaysTLS: a registry with TLS cannot have the credentials sent without.
func TestTLSStaysTLS(t *testing.T) {
	var realm string
	var redirect bool
	away, told := bystander(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case redirect && isBlob(r): // to one that words the challenge itself
			http.Redirect(w, r, strings.Replace(away, "127.0.0.1", "localhost", 1)+r.URL.Path,
				http.StatusTemporaryRedirect)
		case r.URL.Path == "/down":
			http.Redirect(w, r, strings.Replace(away, "127.0.0.1", "localhost", 1), http.StatusSeeOther)
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="s"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	s.TLS = &tls.Config{}
	s.StartTLS()
	defer s.Close()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	writeHosts(t, dir, "registry.test", "server = '"+s.URL+"'\nca = '"+ca+"'\n")
	ref, err := reference.ParseNormalizedNamed("registry.test/dir/big")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ realm, want string }{
		{"http://tokens.invalid/token", "without TLS"},
		{s.URL + "/down", "from https to http"},
	} {
		realm = c.realm
		r, err := New(Config{HostsDir: dir, Backoff: 1, Attempts: 1}).Repository(t.Context(), ref, &Auth{
			Username: "me", Password: "secret",
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Tag(t.Context(), "v1"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", c.realm, err, c.want)
		}
		r.Close()
	}
	wantUntold(t, "TLS", told())
}

// endless answers with a header that does not end.
func endless(w http.ResponseWriter, _ *http.Request) {
	c, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, err = buf.WriteString("HTTP/1.1 200 OK\r\n")
	for line := "X-Endless: " + strings.Repeat("x", 4000) + "\r\n"; err == nil; {
		_, err = buf.WriteString(line)
	}
}

// TestBounds: nobody who answers makes us keep more, or wait longer, than what is asked for needs.
func TestBounds(t *testing.T) {
	t.Run("header", func(t *testing.T) {
		reg := pushed(t)
		reg.Fault(func(w http.ResponseWriter, r *http.Request, _ http.Handler) { endless(w, r) })
		_, err := open(t, reg.Host, nil).Tag(t.Context(), "v1")
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint("exceeded ", maxHeader)) {
			t.Errorf("error is %v", err)
		}
	})
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"header of a token server": {endless, fmt.Sprint("exceeded ", maxHeader)},
		"token": {func(w http.ResponseWriter, _ *http.Request) {
			_, err := io.WriteString(w, `{"token":"`)
			for err == nil {
				_, err = io.WriteString(w, strings.Repeat("t", 4000))
			}
		}, fmt.Sprint("more than ", maxToken)},
		"redirects of a token server": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/token", http.StatusTemporaryRedirect)
		}, "redirects in a row"},
		"token server that does not answer": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // else the server does not see that the client goes
			<-r.Context().Done()
		}, ErrStalled.Error()},
		"token that drips": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			drip(w, r, `{"token":"`)
		}, ErrStalled.Error()},
	} {
		for _, auth := range []*Auth{nil, {Username: "me", Password: "secret"}} {
			t.Run(name, func(t *testing.T) {
				tokens := httptest.NewServer(c.answer)
				defer tokens.Close()
				reg := pushed(t)
				reg.Fault(challenge(tokens.URL + "/token"))
				limit := time.Minute // what is too much comes before that
				if c.want == ErrStalled.Error() {
					limit = time.Second
				}
				_, err := open(t, reg.Host, auth,
					func(cfg *Config) { cfg.StallTimeout, cfg.Attempts = limit, 1 }).Tag(t.Context(), "v1")
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error is %v, want %q", err, c.want)
				}
			})
		}
	}
	for _, what := range []string{"/manifests/", "/blobs/"} {
		t.Run("drip of "+what, func(t *testing.T) {
			reg := pushed(t)
			reg.Fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.Contains(r.URL.Path, what) {
					drip(w, r, "{")
					return
				}
				next.ServeHTTP(w, r)
			})
			r := open(t, reg.Host, nil, func(cfg *Config) { cfg.StallTimeout, cfg.Attempts = time.Second, 1 })
			_, err := r.Tag(t.Context(), "v1")
			if what == "/blobs/" {
				_, err = readBlob(t, r, layer(), 0)
			}
			if !errors.Is(err, ErrStalled) {
				t.Errorf("error is %v", err)
			}
		})
	}
	t.Run("status", func(t *testing.T) {
		reg := pushed(t)
		reg.Fault(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			c, buf, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = buf.WriteString("HTTP/1.1 418 \x1b[31mred" + strings.Repeat("!", 5000) +
				"\r\nContent-Length: 0\r\n\r\n")
			_ = buf.Flush()
		})
		_, err := open(t, reg.Host, nil).Tag(t.Context(), "v1")
		if err == nil || strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 1000 {
			t.Errorf("error is %q", err)
		}
	})
}

// drip sends a byte now and then, without an end: each comes long before the time is over in which something has to
// come.
func drip(w http.ResponseWriter, r *http.Request, begin string) {
	_, _ = io.WriteString(w, begin)
	c := http.NewResponseController(w)
	for c.Flush() == nil && r.Context().Err() == nil {
		time.Sleep(50 * time.Millisecond)
		if _, err := io.WriteString(w, " "); err != nil {
			return
		}
	}
}

// TestDeniedOrForbidden: clients tell who is not known from who may not.
func TestDeniedOrForbidden(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	for code, want := range map[int][3]bool{
		401: {true, false, false}, 403: {true, true, false},
		404: {false, false, true},
	} {
		reg.Fault(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(code) })
		_, err := open(t, reg.Host, nil).Tag(t.Context(), "v1")
		if got := [3]bool{
			errors.Is(err, ErrDenied), errors.Is(err, ErrForbidden),
			errors.Is(err, ErrNotFound),
		}; got != want {
			t.Errorf("%d: %v is %v", code, err, got)
		}
	}
}

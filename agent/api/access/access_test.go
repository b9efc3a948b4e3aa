package access

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// routes take the first part of a path for what it wants.
type routes struct{ http.HandlerFunc }

func (routes) Wants(r *http.Request) Attributes { return of(r.Method, r.URL.Path) }

func of(method, path string) Attributes {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "exec":
		return Attributes{Verb: "create", Subresources: []string{"proxy"}}
	case "metrics", "logs":
		return Attributes{Verb: Verb(method), Subresources: []string{first}}
	case "pods":
		return Attributes{Verb: Verb(method), Subresources: []string{"pods", "proxy"}}
	}
	return Attributes{Verb: Verb(method), Subresources: []string{"proxy"}}
}

func TestRules(t *testing.T) {
	var rules Rules
	for _, s := range []string{"group:system:masters=*", "group:system:monitoring=get:metrics,stats", "user:a=b=pods"} {
		r, err := ParseRule(s)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	for _, c := range []struct {
		user        User
		method, url string
		want        bool
	}{
		{User{Name: "root", Groups: []string{"system:masters"}}, "POST", "/exec/a/b/c", true},
		{User{Name: "prom", Groups: []string{"system:monitoring"}}, "GET", "/metrics", true},
		{User{Name: "prom", Groups: []string{"system:monitoring"}}, "POST", "/metrics", false},
		{User{Name: "prom", Groups: []string{"system:monitoring"}}, "GET", "/pods", false},
		{User{Name: "prom", Groups: []string{"system:monitoring"}}, "GET", "/exec/a/b/c", false},
		{User{Name: "a=b"}, "GET", "/pods", true},
		{User{Name: "a=b"}, "GET", "/containerLogs/a/b/c", false},
		{User{Name: "system:masters"}, "GET", "/pods", false},
		{User{}, "GET", "/pods", false},
	} {
		if ok, _, _ := rules.Authorize(t.Context(), &c.user, of(c.method, c.url)); ok != c.want {
			t.Errorf("%+v %s %s: %t", c.user, c.method, c.url, ok)
		}
	}
	for _, s := range []string{"", "ann", "ann=*", "user:=*", "role:x=*", "user:ann=", "user:ann=everything"} {
		if r, err := ParseRule(s); err == nil {
			t.Errorf("%q was taken: %+v", s, r)
		}
	}
}

func TestTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(s string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(s), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	write("# comment\nsecret,prom,1,\"system:monitoring, more\"\nother,ann,2\n", 0o600)
	tokens, err := ReadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(header string) (*User, error) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", header)
		return TokenFile{func() Tokens { return tokens }}.Authenticate(r)
	}
	if u, err := ask("Bearer secret"); err != nil || u.Name != "prom" ||
		!slices.Equal(u.Groups, []string{"system:monitoring", "more"}) {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err := ask("Bearer nope"); err == nil || u != nil {
		t.Errorf("%+v, %v", u, err)
	}
	for _, h := range []string{"", "Basic secret", "Bearer ", "Bearer"} {
		if u, err := ask(h); err != nil || u != nil {
			t.Errorf("%q: %+v, %v", h, u, err)
		}
	}
	for content, want := range map[string]string{
		"a,b\n": "line 1", "a,b,c\na,x,y\n": "twice", ",b,c\n": "line 1",
		"\"a,b": "quote",
	} {
		write(content, 0o600)
		if _, err := ReadTokens(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", content, err)
		}
	}
	write("a,b,c\n", 0o644)
	if _, err := ReadTokens(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("readable by others: %v", err)
	}
}

// apiServer answers reviews as an API server does.
type apiServer struct {
	tokens, reviews int
	last            authorizationv1.SubjectAccessReviewSpec
	busy            int // so many requests are told to come again
	deny            bool
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	if a.busy > 0 {
		a.busy--
		w.WriteHeader(http.StatusInternalServerError)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: 500,
		})
		return
	}
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		a.tokens++
		var in authenticationv1.TokenReview
		if err := json.Unmarshal(body, &in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if name, ok := strings.CutPrefix(in.Spec.Token, "good"); ok {
			in.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true,
				User: authenticationv1.UserInfo{
					Username: "sa" + name, Groups: []string{"g"},
					Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}},
				},
			}
		}
		if in.Spec.Token == "unclear" {
			in.Status.Error = "not now"
		}
		_ = json.NewEncoder(w).Encode(in)
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		a.reviews++
		var in authorizationv1.SubjectAccessReview
		if err := json.Unmarshal(body, &in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.last = in.Spec
		in.Status.Allowed = in.Spec.ResourceAttributes.Subresource == "proxy" && in.Spec.ResourceAttributes.Verb == "get"
		in.Status.Denied = a.deny
		_ = json.NewEncoder(w).Encode(in)
	default:
		http.NotFound(w, r)
	}
}

func TestWebhook(t *testing.T) {
	server := &apiServer{}
	ts := httptest.NewServer(server)
	defer ts.Close()
	w, err := NewWebhook(WebhookConfig{
		API: &rest.Config{Host: ts.URL}, NodeName: "node", TokenTTL: time.Hour,
		AllowedTTL: time.Hour, ForbiddenTTL: time.Hour, Pause: time.Microsecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	g := &Guard{
		Authenticators: []Authenticator{TokenReviews{w}}, Authorizer: w, Log: slog.New(slog.DiscardHandler),
		Next: routes{func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "in") }},
	}
	ask := func(method, path, token string) int {
		r := httptest.NewRequest(method, path, nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		rec := httptest.NewRecorder()
		g.ServeHTTP(rec, r)
		return rec.Code
	}
	for range 2 {
		if code := ask("GET", "/pods", "good"); code != http.StatusOK {
			t.Errorf("allowed by the wider subresource: %d", code)
		}
	}
	if server.tokens != 1 || server.reviews != 2 {
		t.Errorf("asked %d and %d times, not from memory", server.tokens, server.reviews)
	}
	l := server.last
	if l.User != "sa" || !slices.Equal(l.Groups, []string{"g", AuthenticatedGroup}) || l.Extra["k"][0] != "v" ||
		l.ResourceAttributes.Name != "node" || l.ResourceAttributes.Resource != "nodes" {
		t.Errorf("%+v %+v", l, l.ResourceAttributes)
	}
	for _, c := range []struct {
		method, path, token string
		want                int
	}{
		{"GET", "/exec/a/b/c", "good", http.StatusForbidden},
		{"GET", "/metrics", "good", http.StatusForbidden},
		{"GET", "/pods", "bad", http.StatusUnauthorized},
		{"GET", "/pods", "", http.StatusUnauthorized},
	} {
		if code := ask(c.method, c.path, c.token); code != c.want {
			t.Errorf("%+v: %d", c, code)
		}
	}
	g.AllowAnonymous = true
	if code := ask("GET", "/pods", ""); code != http.StatusOK || server.last.User != Anonymous {
		t.Errorf("anonymous: %d, %+v", code, server.last)
	}
	if code := ask("GET", "/pods", "bad"); code != http.StatusUnauthorized {
		t.Errorf("a bad token became anonymous: %d", code)
	}
	asked := server.tokens
	for range 2 {
		if code := ask("GET", "/pods", "unclear"); code != http.StatusUnauthorized {
			t.Errorf("%d", code)
		}
	}
	if server.tokens != asked+2 {
		t.Error("what the server could not find out was remembered")
	}
	server.busy = 4
	if code := ask("GET", "/containerLogs/a/b/c", "good1"); code != http.StatusOK || server.busy != 0 {
		t.Errorf("busy API server: %d", code)
	}
	server.busy = 100
	if code := ask("PUT", "/containerLogs/a/b/c", "good"); code != http.StatusInternalServerError || server.busy != 95 {
		t.Errorf("API server that stays busy: %d, %d", code, server.busy)
	}
	server.busy, server.deny = 0, true
	if code := ask("GET", "/runningpods/", "other"); code != http.StatusUnauthorized {
		t.Errorf("%d", code)
	}
	if code := ask("GET", "/debug/pprof/", "good2"); code != http.StatusInternalServerError {
		t.Errorf("allowed and denied at once: %d", code)
	}
	server.deny = false
	ts.Close()
	if code := ask("GET", "/logs/", "good"); code != http.StatusInternalServerError {
		t.Errorf("no API server: %d", code)
	}
	if code := ask("GET", "/pods", "new"); code != http.StatusUnauthorized {
		t.Errorf("no API server: %d", code)
	}
}

// TestEndlessReview: an answer without end is none.
func TestEndlessReview(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, err := io.WriteString(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true},"x":"`)
		for block := bytes.Repeat([]byte("x"), 64<<10); err == nil; {
			_, err = w.Write(block)
		}
	}))
	defer ts.Close()
	w, err := NewWebhook(WebhookConfig{API: &rest.Config{Host: ts.URL}, NodeName: "node", Pause: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.token(t.Context(), "good"); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// TestShown has tokens shown in each way, of which nothing may be left for those that the request goes on to.
func TestShown(t *testing.T) {
	var asked string
	known := func(token string) (*User, error) {
		asked = token
		return &User{Name: "ann"}, nil
	}
	r := httptest.NewRequest(http.MethodGet, "/exec/a/b/c", nil)
	r.Header.Set("Authorization", "bearer good")
	if u, err := byToken(r, known); err != nil || u == nil || asked != "good" || r.Header.Get("Authorization") != "" {
		t.Errorf("%v, %v, asked %q, left %q", u, err, asked, r.Header)
	}
	socket := func(protocols ...string) (*User, error) {
		asked = ""
		r = httptest.NewRequest(http.MethodGet, "/exec/a/b/c", nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		r.Header["Sec-Websocket-Protocol"] = protocols
		return byToken(r, known)
	}
	const good = tokenProtocol + "Z29vZA"
	if u, err := socket("v5.channel.k8s.io, "+good, "v4.channel.k8s.io"); err != nil || u == nil || asked != "good" ||
		r.Header.Get(protocolHeader) != "v5.channel.k8s.io,v4.channel.k8s.io" {
		t.Errorf("%v, %v, asked %q, left %q", u, err, asked, r.Header)
	}
	for _, p := range []string{
		good, good + ",", "v4.channel.k8s.io," + good + "," + good, "a," + tokenProtocol + "?",
		"a," + tokenProtocol, "a," + tokenProtocol + "_w",
	} {
		if u, err := socket(p); err == nil || u != nil || asked != "" {
			t.Errorf("%q: %v, %v", p, u, err)
		}
	}
	if u, err := socket("v4.channel.k8s.io"); err != nil || u != nil || asked != "" {
		t.Errorf("no token: %v, %v", u, err)
	}
	r.Header.Del("Upgrade")
	r.Header.Set(protocolHeader, "a,"+good)
	if u, err := byToken(r, known); err != nil || u != nil {
		t.Errorf("no WebSocket: %v, %v", u, err)
	}
}

// TestForeign: what a page of another origin has a browser do counts for nobody, whoever sits before it.
func TestForeign(t *testing.T) {
	root := authenticate(func(*http.Request) (*User, error) { return &User{Name: "root"}, nil })
	served := 0
	g := &Guard{
		Authenticators: []Authenticator{root}, Authorizer: AlwaysAllow{}, Log: slog.New(slog.DiscardHandler),
		Next: routes{func(http.ResponseWriter, *http.Request) { served++ }},
	}
	type header map[string]string
	socket := func(more header) header {
		h := header{"Connection": "Upgrade", "Upgrade": "websocket", protocolHeader: "v4.channel.k8s.io"}
		maps.Copy(h, more)
		return h
	}
	for _, c := range []struct {
		method string
		header header
		pass   bool
	}{
		{"POST", header{}, true},
		{"GET", socket(nil), true},
		{"POST", header{"Origin": "https://node:10250"}, true},
		{"POST", header{"Origin": "https://page.example"}, false},
		{"POST", header{"Origin": "null"}, false},
		{"POST", header{"Origin": "https://node:443"}, false},
		{"DELETE", header{"Origin": "%"}, false},
		{"GET", header{"Origin": "https://page.example"}, true},
		{"GET", header{"Sec-Fetch-Site": "cross-site"}, true},
		{"GET", socket(header{"Origin": "https://page.example"}), false},
		{"GET", socket(header{"Origin": "https://node:10250"}), true},
		{"GET", socket(header{"Sec-Fetch-Site": "cross-site"}), false},
		{"GET", socket(header{"Sec-Fetch-Site": "same-site", "Origin": "https://node:10250"}), false},
		{"POST", header{"Sec-Fetch-Site": "cross-site"}, false},
		{"POST", header{"Sec-Fetch-Site": "same-origin", "Origin": "https://node:10250"}, true},
		{"POST", header{"Sec-Fetch-Site": "none"}, true},
		{"GET", socket(header{"Origin": "https://page.example", "X-Forwarded-For": "192.0.2.1"}), true},
		{"GET", socket(header{"Origin": "https://page.example", "Authorization": "Bearer x"}), true},
		{"GET", socket(header{"Origin": "https://page.example", protocolHeader: "v4.channel.k8s.io," + tokenProtocol + "Z29vZA"}), true},
		{"GET", socket(header{"Origin": "https://page.example", "Authorization": "Basic cm9vdDp4"}), false},
	} {
		served = 0
		r := httptest.NewRequest(c.method, "https://node:10250/exec/a/b/c", nil)
		for k, v := range c.header {
			r.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if passed := served == 1; passed != c.pass || !passed && w.Code != http.StatusForbidden {
			t.Errorf("%s %v: passed %t, %d", c.method, c.header, passed, w.Code)
		}
	}
}

// authenticate is an authenticator.
type authenticate func(*http.Request) (*User, error)

func (a authenticate) Authenticate(r *http.Request) (*User, error) { return a(r) }

func FuzzWebSocketToken(f *testing.F) {
	f.Add("v5.channel.k8s.io, " + tokenProtocol + "Z29vZA")
	f.Add(tokenProtocol)
	f.Fuzz(func(t *testing.T, protocols string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Upgrade", "websocket")
		r.Header[protocolHeader] = []string{protocols}
		token, others, err := webSocketToken(r)
		if err == nil && token != "" && strings.Contains(strings.Join(others, ","), tokenProtocol) {
			t.Errorf("%q: the token is left in %q", protocols, others)
		}
	})
}

// TestOtherAnswers: an answer that is no review is neither a yes nor a no, and is not remembered.
func TestOtherAnswers(t *testing.T) {
	text := ""
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}))
	defer ts.Close()
	w, err := NewWebhook(WebhookConfig{
		API: &rest.Config{Host: ts.URL}, NodeName: "node", TokenTTL: time.Hour, AllowedTTL: time.Hour, ForbiddenTTL: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, text = range []string{
		`{}`, `{"status":{"authenticated":true,"allowed":true}}`, `{"kind":"Status","apiVersion":"v1","status":"Success"}`,
	} {
		if st, err := w.token(t.Context(), "good"); err == nil || len(err.Error()) > 200 {
			t.Errorf("%s: %+v, %v", text, st, err)
		}
		if st, err := w.review(t.Context(), authorizationv1.SubjectAccessReviewSpec{User: "u"}); err == nil {
			t.Errorf("%s: %+v, %v", text, st, err)
		}
	}
	text = `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true,"user":{"username":"u"}}}`
	if st, err := w.token(t.Context(), "good"); err != nil || st.User.Username != "u" {
		t.Errorf("%+v, %v", st, err)
	}
	text = `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`
	if st, err := w.review(t.Context(), authorizationv1.SubjectAccessReviewSpec{User: "u"}); err != nil || !st.Allowed {
		t.Errorf("%+v, %v", st, err)
	}
}

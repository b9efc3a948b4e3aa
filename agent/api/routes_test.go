package api

import (
	"crypto/tls"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-node/berth/agent/api/access"
)

// permissions is what each request of the API needs, written down a second time: who adds a route or changes one says
// so here. Capital letters are whatever somebody calls a thing.
var permissions = map[string]string{
	"GET /healthz": "get healthz proxy", "GET /healthz/": "get healthz proxy", "GET /healthz/ping": "get healthz proxy",
	"GET /healthz/log": "get healthz proxy", "GET /healthz/syncloop": "get healthz proxy",
	"GET /pods": "get pods proxy", "GET /pods/": "get pods proxy", "GET /pods/NS/POD": "get pods proxy", "DELETE " +
		"/pods/NS/POD": "delete pods proxy",
	"PATCH /pods/NS/POD/status": "patch pods proxy", "PATCH /pods/NS/POD/ephemeralcontainers": "create proxy",
	"GET /runningpods": "get pods proxy", "GET /runningpods/": "get pods proxy",
	"GET /metrics": "get metrics", "GET /metrics/resource": "get metrics", "GET /stats/summary": "get stats", "POST " +
		"/stats/summary": "create stats",
	"GET /configz": "get configz proxy", "GET /logs/": "get log", "GET /logs/REST": "get log",
	"GET /containerLogs/NS/POD/CONTAINER": "get proxy", "GET /events": "get proxy", "GET /problems": "get proxy", "GET /cluster": "get proxy", "GET " +
		"/timing/NS/POD": "get proxy",
	"GET /exec/NS/POD/CONTAINER": "create proxy", "POST /exec/NS/POD/CONTAINER": "create proxy",
	"GET /exec/NS/POD/UID/CONTAINER": "create proxy", "POST /exec/NS/POD/UID/CONTAINER": "create proxy",
	"GET /attach/NS/POD/CONTAINER": "create proxy", "POST /attach/NS/POD/CONTAINER": "create proxy",
	"GET /attach/NS/POD/UID/CONTAINER": "create proxy", "POST /attach/NS/POD/UID/CONTAINER": "create proxy",
	"GET /portForward/NS/POD": "create proxy", "POST /portForward/NS/POD": "create proxy",
	"GET /portForward/NS/POD/UID": "create proxy", "POST /portForward/NS/POD/UID": "create proxy",
	"POST /run/NS/POD/CONTAINER": "create proxy", "POST /run/NS/POD/UID/CONTAINER": "create proxy",
	"POST /checkpoint/NS/POD/CONTAINER": "create checkpoint",
	"GET /images/":                      "get proxy", "POST /images/": "create proxy", "DELETE /images/": "delete " +
		"proxy", "POST /images/REST": "create proxy",
	"GET /debug/pprof/": "get proxy", "GET /debug/pprof/cmdline": "get proxy", "GET /debug/pprof/profile": "get proxy",
	"GET /debug/pprof/symbol": "get proxy", "GET /debug/pprof/trace": "get proxy",
}

// onSocketAlone are the routes that nobody from elsewhere has.
var onSocketAlone = []string{"POST /certificates", "GET /certificates/ca"}

type nothing struct {
	Runtime
	Changes
	Authority
	Stats
}

func everything() *Server {
	none := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	return New(Config{
		Metrics: map[string]prometheus.Gatherer{
			"/metrics":          prometheus.NewRegistry(),
			"/metrics/resource": prometheus.NewRegistry(),
		}, Stats: nothing{},
		Images: none, Node: Node{Configz: func() any { return nil }, Cluster: func() any { return nil }}, Changes: nothing{}, Authority: nothing{}, CheckpointDir: "/x", SystemLogs: "/x", Profiling: true,
	})
}

var (
	wildcard = regexp.MustCompile(`\{[^}]*\}`)
	capital  = regexp.MustCompile(`\b[A-Z]+\b`)
)

// TestPermissions walks all routes: each has the permission written down here, each written down here is a route.
func TestPermissions(t *testing.T) {
	s := everything()
	seen := map[string]bool{}
	for _, r := range s.table() {
		written := wildcard.ReplaceAllStringFunc(r.pattern,
			func(w string) string { return strings.ToUpper(strings.Trim(w, "{}$")) })
		if slices.Contains(onSocketAlone, written) {
			if r.served != Full {
				t.Errorf("%s is served to others", r.pattern)
			}
			continue
		}
		want, ok := permissions[written]
		if !ok {
			t.Errorf("%s (%q): nobody has said who may", r.pattern, written)
			continue
		}
		seen[written] = true
		verb := access.Verb(strings.Fields(r.pattern)[0])
		if r.wants.intrusive {
			verb = "create"
		}
		if got := verb + " " + strings.Join(r.wants.subresources, " "); got != want {
			t.Errorf("%s needs %q, want %q", r.pattern, got, want)
		}
	}
	for p := range permissions {
		if !seen[p] && !strings.HasSuffix(p, "REST") {
			t.Errorf("%s is no route", p)
		}
	}
}

// words are every fixed part of a path of the API, and what could be taken for more than one part.
func words() []string {
	set := map[string]bool{
		"": true, ".": true, "..": true, "a/b": true, "%2f": true, "ephemeralcontainers/": true,
		"x?watch=1": true, "x#y": true, "größe\x00": true,
	}
	for p := range permissions {
		for part := range strings.SplitSeq(strings.Fields(p)[1], "/") {
			if part != strings.ToUpper(part) {
				set[part], set["x/"+part], set["../"+part], set["/"+part+"/"] = true, true, true, true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// TestNamesChangeNoPermission asks for every route with every word of every route in the place of each name, as the
// only thing and as the last of several, escaped: the permission is that of the route, and who has all others but that
// is refused.
func TestNamesChangeNoPermission(t *testing.T) {
	h := everything().Handler(Network)
	for p, want := range permissions {
		method, path, _ := strings.Cut(p, " ")
		for _, word := range words() {
			named := capital.ReplaceAllStringFunc(path, func(name string) string {
				if name == "REST" {
					return "rest"
				}
				// A dot alone would be cleaned away by clients and servers before anybody looks.
				return strings.ReplaceAll(url.PathEscape(word), ".", "%2e")
			})
			if word == "" && named != path {
				continue // a part of a path is never empty: it is cleaned away
			}
			r := request(t, method, named)
			a := h.Wants(r)
			if got := a.Verb + " " + strings.Join(a.Subresources, " "); got != want {
				t.Errorf("%s %s wants %q, want %q", method, named, got, want)
			}
		}
	}
}

// request is one with the path as it is, which no client cleans.
func request(t *testing.T, method, path string) *http.Request {
	t.Helper()
	u, err := url.ParseRequestURI(path)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Request{
		Method: method, URL: u, Host: "node", Header: http.Header{}, Body: http.NoBody,
		TLS: &tls.ConnectionState{},
	}
}

type user struct{}

func (user) Authenticate(*http.Request) (*access.User, error) { return &access.User{Name: "ann"}, nil }

// TestNothingWithoutItsPermission sends odd requests as one who may read pods, metrics and logs, write statuses and
// health, and has not proxy: whatever reaches a handler must be among these.
func TestNothingWithoutItsPermission(t *testing.T) {
	rule, err := access.ParseRule("user:ann=pods,metrics,log,stats,healthz,configz")
	if err != nil {
		t.Fatal(err)
	}
	h := everything().Handler(Network)
	inside := http.NewServeMux() // the same routes, with handlers that only tell that they were reached
	for pattern := range h.wants {
		inside.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Reached", pattern) })
	}
	g := &access.Guard{
		Authenticators: []access.Authenticator{user{}}, Authorizer: access.Rules{rule},
		Next: &Handler{inside, h.wants}, Log: slog.New(slog.DiscardHandler),
	}
	tails := []string{
		"", "/", "//", "/.", "/..", "/./", "/../", "/status", "/ephemeralcontainers",
		"%2fephemeralcontainers", "/%2e%2e/exec", "/../../../pods", "%00", ";status", "?x=/pods", "/x/../status",
	}
	heads := []string{"", "/", "//", "/.", "/pods/..", "/metrics/..", "/%2e", "/logs/%2e%2e"}
	stride, at := 1, 0
	if testing.Short() {
		stride = 23 // has no divisor in common with how many there are of each part: all of them are among the requests
	}
	for p := range permissions {
		_, path, _ := strings.Cut(p, " ")
		for _, name := range []string{"web", "metrics", "status", "ephemeralcontainers", "a%2fmetrics", "%2e%2e"} {
			for _, head := range heads {
				for _, tail := range tails {
					for _, method := range []string{
						"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT",
						"get", "PROPFIND",
					} {
						if at++; at%stride != 0 {
							continue
						}
						r := request(t, method, head+capital.ReplaceAllString(path, name)+tail)
						rec := httptest.NewRecorder()
						g.ServeHTTP(rec, r)
						reached := rec.Header().Get("Reached")
						if reached == "" {
							continue
						}
						if need := h.wants[reached]; need.intrusive || slices.Equal(need.subresources, []string{"proxy"}) {
							t.Fatalf("%s %s reached %s", method, r.URL, reached)
						}
					}
				}
			}
		}
	}
}

// TestContainerCalledAsARoute asks about containers and pods that are called as a route: what is wanted of them stays
// what it is.
func TestContainerCalledAsARoute(t *testing.T) {
	h := everything().Handler(Network)
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/containerLogs/ns/pod/ephemeralcontainers", "get proxy"},
		{"GET", "/containerLogs/ns/ephemeralcontainers/c", "get proxy"},
		{"GET", "/pods/ns/ephemeralcontainers", "get pods proxy"},
		{"DELETE", "/pods/ns/ephemeralcontainers", "delete pods proxy"},
		{"GET", "/logs/pods/ephemeralcontainers", "get log"},
		{"POST", "/checkpoint/ns/pod/ephemeralcontainers", "create checkpoint"},
		{"POST", "/run/ns/pod/ephemeralcontainers", "create proxy"},
		{"PATCH", "/pods/ns/status/ephemeralcontainers", "create proxy"},
		{"PATCH", "/pods/ns/ephemeralcontainers/status", "patch pods proxy"},
		{"PATCH", "/pods/ns/pod%2fephemeralcontainers/status", "patch pods proxy"},
		{"PATCH", "/pods/ns/pod/ephemeralcontainers/", "patch proxy"}, // no route
	} {
		a := h.Wants(request(t, c.method, c.path))
		if got := a.Verb + " " + strings.Join(a.Subresources, " "); got != c.want {
			t.Errorf("%s %s wants %q, want %q", c.method, c.path, got, c.want)
		}
	}
}

// TestPermissionsAreWrittenDown compares the table of the documentation with the routes.
func TestPermissionsAreWrittenDown(t *testing.T) {
	doc, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range permissions {
		_, subs, _ := strings.Cut(want, " ")
		first := "/" + strings.Split(strings.Fields(p)[1], "/")[1]
		cell := "`" + strings.ReplaceAll(subs, " ", "` or `") + "`"
		found := false
		for line := range strings.Lines(string(doc)) {
			found = found || strings.HasPrefix(line, "|") && strings.Contains(line, first) &&
				strings.HasSuffix(strings.TrimSpace(line), "| "+cell+" |")
		}
		if !found {
			t.Errorf("docs/api.md has no row with %s and %s", first, cell)
		}
	}
}

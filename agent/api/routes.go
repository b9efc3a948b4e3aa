package api

import (
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berth-node/berth/agent/api/access"
)

// permission is what a client from elsewhere needs for a route.
type permission struct {
	// subresources of the node, each of which is enough.
	subresources []string
	// intrusive routes reach into a pod, or make a file of what is in one. Their verb is create whichever method asks:
	// a WebSocket begins with GET, and who may read must not thereby be able to run commands.
	intrusive bool
}

// The permissions of the API. Where proxy is not beside the narrower one, it does not include it.
var (
	toReadHealth     = permission{subresources: []string{"healthz", "proxy"}}
	toReadConfig     = permission{subresources: []string{"configz", "proxy"}}
	toReadMetrics    = permission{subresources: []string{"metrics"}}
	toReadStats      = permission{subresources: []string{"stats"}}
	toReadSystemLogs = permission{subresources: []string{"log"}}
	toPods           = permission{subresources: []string{"pods", "proxy"}}
	toProxy          = permission{subresources: []string{"proxy"}}
	toEnter          = permission{subresources: []string{"proxy"}, intrusive: true}
	toCheckpoint     = permission{subresources: []string{"checkpoint"}, intrusive: true}
)

// route is one row of the API: which requests it is, where it is served, who may have it, and who answers.
type route struct {
	// pattern is one of http.ServeMux. Parts of a path are matched before they are unescaped, so that no name of a pod
	// or container, whatever is in it, makes one route of another.
	pattern string
	served  Access // the narrowest part of the API that has it; the wider ones have it too
	wants   permission
	handler http.Handler
}

// routes are rows of the API.
type routes []route

// add has one handler for some patterns.
func (t *routes) add(served Access, wants permission, h http.Handler, patterns ...string) {
	for _, p := range patterns {
		*t = append(*t, route{p, served, wants, h})
	}
}

// table is the whole API. What the configuration has not, is not in it.
func (s *Server) table() []route {
	return slices.Concat(s.monitoring(), s.ofPods(), s.shortage(), s.intrusive(), s.ofVolumes(), s.ofNode())
}

// monitoring are the routes of who only looks, as a load balancer or Prometheus does.
func (s *Server) monitoring() routes {
	var t routes
	for pattern, h := range s.health() {
		t.add(Health, toReadHealth, s.answer(h), pattern)
	}
	for path, g := range s.cfg.Metrics {
		// One figure that cannot be had must not cost all others.
		t.add(ReadOnly, toReadMetrics, promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}),
			"GET "+path)
	}
	if s.cfg.Stats != nil {
		t.add(ReadOnly, toReadStats, s.answer(s.summary), "GET /stats/summary", "POST /stats/summary")
	}
	return t
}

// ofPods are the routes about pods, what happens to them, and manifests.
func (s *Server) ofPods() routes {
	var t routes
	t.add(ReadOnly, toPods, s.answer(s.listPods), "GET /pods", "GET /pods/{$}")
	t.add(Network, toPods, s.answer(s.getPod), "GET /pods/{ns}/{pod}")
	t.add(Network, toPods, s.answer(s.deletePod), "DELETE /pods/{ns}/{pod}")
	t.add(Network, toPods, s.answer(s.runningPods), "GET /runningpods", "GET /runningpods/{$}")
	t.add(Network, toProxy, s.answer(s.events), "GET /events")
	t.add(Network, toProxy, s.answer(s.problems), "GET /problems")
	t.add(Network, toProxy, s.answer(s.timing), "GET /timing/{ns}/{pod}")
	logs := &containerLog{s.pods, s.cfg.Runtime}
	t.add(Network, toProxy, s.answer(logs.read), "GET /containerLogs/{ns}/{pod}/{container}")
	return t
}

// shortage are the routes about evictions and the kernel's kills.
func (s *Server) shortage() routes {
	var t routes
	if s.cfg.Shortage.Eviction != nil {
		e := &evictions{s.cfg.Shortage.Eviction}
		t.add(Network, toProxy, s.answer(e.state), "GET /eviction")
		t.add(Network, toProxy, s.answer(e.rank), "GET /eviction/rank")
		t.add(Network, toProxy, s.answer(e.simulate), "GET /eviction/simulate")
		t.add(Network, toProxy, s.answer(e.decisions), "GET /eviction/decisions")
	}
	if s.cfg.Shortage.Kills != nil {
		k := &kills{s.cfg.Shortage.Kills}
		t.add(Network, toProxy, s.answer(k.reports), "GET /eviction/oom")
	}
	return t
}

// ofVolumes are the routes about volumes of CSI drivers.
func (s *Server) ofVolumes() routes {
	var t routes
	if s.cfg.Volumes != nil {
		v := &volumes{s.cfg.Volumes}
		t.add(Network, toProxy, s.answer(v.state), "GET /volumes")
		t.add(Network, toProxy, s.answer(v.check), "GET /volumes/check")
		// What may be the end of data is for who is root here.
		t.add(Full, toProxy, s.answer(v.undo), "POST /volumes/undo")
		t.add(Full, toProxy, s.answer(v.abandon), "POST /volumes/abandon")
		t.add(Full, toProxy, s.answer(v.decide), "POST /volumes/{kind}/{ns}/{claim}", "DELETE /volumes/{kind}/{ns}/{claim}")
	}
	return t
}

// ofNode are the routes about the node and the agent themselves.
func (s *Server) ofNode() routes {
	var t routes
	if s.cfg.Node.Configz != nil {
		t.add(NoDebugging, toReadConfig, s.answer(s.configz), "GET /configz")
	}
	if s.cfg.Node.Cluster != nil {
		t.add(Network, toProxy, s.answer(s.cluster), "GET /cluster")
	}
	if s.cfg.SystemLogs != "" {
		t.add(Network, toReadSystemLogs, s.answer(s.systemLogs), "GET /logs/")
	}
	if s.cfg.Images != nil {
		t.add(Network, toProxy, s.cfg.Images, "GET /images/", "POST /images/", "DELETE /images/")
	}
	if s.cfg.Prune != nil {
		t.add(Network, toProxy, s.answer(s.prune), "POST /prune")
	}
	if s.cfg.Profiling {
		for pattern, h := range profiles() {
			t.add(Network, toProxy, h, pattern)
		}
	}
	if s.cfg.Authority != nil {
		c := &certificates{s.cfg.Authority}
		t.add(Full, toProxy, s.answer(c.sign), "POST /certificates")
		t.add(Full, toProxy, s.answer(c.bundle), "GET /certificates/ca")
	}
	return t
}

// intrusive are the routes by which something is run in a pod, sent to it or taken out of it.
func (s *Server) intrusive() routes {
	var t routes
	add := func(wants permission, h handler, patterns ...string) {
		for _, p := range patterns {
			t = append(t, route{p, Network, wants, s.answer(h)})
		}
	}
	e := &entrance{s.pods, s.cfg.Runtime, s.cfg.CheckpointDir, s.log}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		add(toEnter, e.exec, method+" /exec/{ns}/{pod}/{container}", method+" /exec/{ns}/{pod}/{uid}/{container}")
		add(toEnter, e.attach, method+" /attach/{ns}/{pod}/{container}", method+" /attach/{ns}/{pod}/{uid}/{container}")
		add(toEnter, e.portForward, method+" /portForward/{ns}/{pod}", method+" /portForward/{ns}/{pod}/{uid}")
	}
	add(toEnter, e.run, "POST /run/{ns}/{pod}/{container}", "POST /run/{ns}/{pod}/{uid}/{container}")
	if s.cfg.Changes != nil {
		// A container that is added to a pod is a way into it, as a command is.
		c := &changer{s.pods, s.cfg.Changes}
		add(toEnter, c.ephemeral, "PATCH /pods/{ns}/{pod}/ephemeralcontainers")
		add(toPods, c.status, "PATCH /pods/{ns}/{pod}/status")
	}
	if s.cfg.CheckpointDir != "" {
		add(toCheckpoint, e.checkpoint, "POST /checkpoint/{ns}/{pod}/{container}")
	}
	return t
}

// Handler serves a part of the API, and knows what each request for it wants.
type Handler struct {
	mux   *http.ServeMux
	wants map[string]permission // by pattern
}

// Handler returns a part of the API.
func (s *Server) Handler(a Access) *Handler {
	h := &Handler{http.NewServeMux(), map[string]permission{}}
	for _, r := range s.table() {
		if a > r.served {
			continue
		}
		h.mux.Handle(r.pattern, r.handler)
		h.wants[r.pattern] = r.wants
	}
	return h
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// Wants implements [access.Routes]: it asks the very multiplexer that the request is going to be served by. A request
// that no route is for, which is then refused, wants proxy: who may do little is not told what there is.
func (h *Handler) Wants(r *http.Request) access.Attributes {
	_, pattern := h.mux.Handler(r)
	p, ok := h.wants[pattern]
	if !ok {
		p = toProxy
	}
	out := access.Attributes{Verb: access.Verb(r.Method), Subresources: p.subresources}
	if p.intrusive {
		out.Verb = "create"
	}
	return out
}

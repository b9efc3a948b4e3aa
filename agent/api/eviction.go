package api

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/agent/pressure"
	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
)

// Eviction tells what the node runs short of, and which pods end for it.
type Eviction interface {
	State(ctx context.Context) pressure.State
	Rank(ctx context.Context, of signal.Signal) ([]rank.Line, error)
	// Simulate says who would go if only so much were left.
	Simulate(ctx context.Context, of signal.Signal, available int64) ([]pressure.Simulation, error)
	// Decisions are past evictions, the oldest first.
	Decisions() []eviction.Decision
}

// evictions tells what an [Eviction] knows.
type evictions struct{ node Eviction }

func (e *evictions) state(w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, e.node.State(r.Context()))
}

// signalOf is the signal that is asked about, the memory's if none is.
func signalOf(r *http.Request) (signal.Signal, error) {
	text := r.FormValue("signal")
	if text == "" {
		return signal.MemoryAvailable, nil
	}
	of := signal.Signal(text)
	if !slices.Contains(signal.All(), of) {
		var names []string
		for _, one := range signal.All() {
			names = append(names, string(one))
		}
		return "", badRequest("signal: %q is none: must be one of %s", text, strings.Join(names, ", "))
	}
	return of, nil
}

func (e *evictions) rank(w http.ResponseWriter, r *http.Request) error {
	of, err := signalOf(r)
	if err != nil {
		return err
	}
	lines, err := e.node.Rank(r.Context(), of)
	if err != nil {
		return err
	}
	return writeJSON(w, lines)
}

func (e *evictions) simulate(w http.ResponseWriter, r *http.Request) error {
	of, err := signalOf(r)
	if err != nil {
		return err
	}
	q, err := resource.ParseQuantity(r.FormValue("available"))
	if err != nil || q.Sign() < 0 {
		return badRequest("available: %q is no quantity", r.FormValue("available"))
	}
	out, err := e.node.Simulate(r.Context(), of, q.Value())
	if err != nil {
		return err
	}
	return writeJSON(w, out)
}

// decisions are those about one pod, by its name or UID, or all.
func (e *evictions) decisions(w http.ResponseWriter, r *http.Request) error {
	ns, name := r.FormValue("namespace"), r.FormValue("pod")
	out := []eviction.Decision{}
	for _, d := range e.node.Decisions() {
		if (ns == "" || d.Pod.Namespace == ns) && (name == "" || d.Pod.Name == name || string(d.Pod.UID) == name) {
			out = append(out, d)
		}
	}
	return writeJSON(w, out)
}

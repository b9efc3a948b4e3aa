package client

import (
	"context"

	"github.com/berth-node/berth/agent/pressure"
	"github.com/berth-node/berth/cgroups/oom"
	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/rank"
)

// Eviction is what can be asked of the end of pods for want of what the node has left.
type Eviction struct{ client *Client }

// Eviction returns the calls of the client that are of evictions.
func (c *Client) Eviction() *Eviction { return &Eviction{c} }

// State returns what the node runs short of.
func (e *Eviction) State(ctx context.Context) (*pressure.State, error) {
	s := &pressure.State{}
	_, err := e.client.get(ctx, "/eviction", nil, s)
	return s, err
}

// Rank returns the pods in the order in which they would go.
func (e *Eviction) Rank(ctx context.Context, signal string) ([]rank.Line, error) {
	lines := []rank.Line{}
	_, err := e.client.get(ctx, "/eviction/rank", values("signal", signal), &lines)
	return lines, err
}

// Simulate returns who would go if only so much were left, for each threshold of the signal.
func (e *Eviction) Simulate(ctx context.Context, signal, available string) ([]pressure.Simulation, error) {
	out := []pressure.Simulation{}
	_, err := e.client.get(ctx, "/eviction/simulate", values("signal", signal, "available", available), &out)
	return out, err
}

// Decisions returns past evictions, of one pod or of all, the oldest first.
func (e *Eviction) Decisions(ctx context.Context, ns, name string) ([]eviction.Decision, error) {
	out := []eviction.Decision{}
	_, err := e.client.get(ctx, "/eviction/decisions", values("namespace", ns, "pod", name), &out)
	return out, err
}

// OOMReports returns what is kept of processes that the kernel has killed for want of memory, of one pod or of all, the
// oldest first.
func (e *Eviction) OOMReports(ctx context.Context, ns, name string) ([]oom.Report, error) {
	out := []oom.Report{}
	_, err := e.client.get(ctx, "/eviction/oom", values("namespace", ns, "pod", name), &out)
	return out, err
}

package pressure

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
	"github.com/berth-node/berth/eviction/threshold"
)

// State is what the node says of itself: which conditions hold, and how much is left of what.
type State struct {
	Conditions []Condition `json:"conditions"`
	Signals    []Level     `json:"signals"`
	// Stalls are as far as the kernel tells of them.
	Stalls []Stall `json:"stalls"`
	// Unknown says what could not be read.
	Unknown string `json:"unknown,omitempty"`
}

// Condition is one of the node's.
type Condition struct {
	Type    corev1.NodeConditionType `json:"type"`
	Status  corev1.ConditionStatus   `json:"status"`
	Reason  string                   `json:"reason"`
	Message string                   `json:"message"`
	Since   time.Time                `json:"lastTransitionTime"`
}

// Stall is for how much of the last ten seconds tasks stood still for want of something, in percent.
type Stall struct {
	For  string  `json:"for"` // memory, io or cpu
	Of   string  `json:"of"`  // node or pods
	Some float64 `json:"somePercent"`
	All  float64 `json:"allPercent"`
}

// Level is how much is left of something, and what is too little.
type Level struct {
	Signal     signal.Signal `json:"signal"`
	Unit       string        `json:"unit"` // of the amounts
	Available  int64         `json:"available"`
	Capacity   int64         `json:"capacity"`
	Thresholds []Limit       `json:"thresholds"`
}

// Limit is a threshold on this node.
type Limit struct {
	Kind  string        `json:"kind"` // hard or soft
	Value string        `json:"value"`
	At    int64         `json:"at"`
	Grace time.Duration `json:"graceNs,omitempty"`
	Met   bool          `json:"met"`
}

// Simulation is what would come of it if only so much were left.
type Simulation struct {
	Signal    signal.Signal `json:"signal"`
	Available int64         `json:"available"`
	Kind      string        `json:"kind"`
	Threshold string        `json:"threshold"`
	At        int64         `json:"at"`
	rank.Outcome
}

// Reader reads how much is left.
type Reader interface {
	Read(ctx context.Context) (signal.Readings, error)
}

// View shows eviction to people.
type View struct {
	Node   *Node
	Reader Reader
	Policy threshold.Policy
	Stalls func() []Stall // nil: nobody knows
}

// State is what holds now.
func (v *View) State(ctx context.Context) State {
	readings, err := v.Reader.Read(ctx)
	s := State{Conditions: v.Node.shown(), Signals: []Level{}, Stalls: []Stall{}}
	if v.Stalls != nil {
		s.Stalls = append(s.Stalls, v.Stalls()...)
	}
	if err != nil {
		s.Unknown = err.Error()
	}
	for _, of := range signal.All() {
		r, ok := readings[of]
		if !ok {
			continue
		}
		l := Level{Signal: of, Unit: of.Unit(), Available: r.Available, Capacity: r.Capacity, Thresholds: []Limit{}}
		for _, t := range v.thresholds(of) {
			l.Thresholds = append(l.Thresholds, Limit{t.Kind(), t.Value.Format(of), t.At(r.Capacity), t.Grace, t.Met(r)})
		}
		s.Signals = append(s.Signals, l)
	}
	return s
}

func (v *View) thresholds(of signal.Signal) []threshold.Threshold {
	return slices.DeleteFunc(slices.Clone(v.Policy.Thresholds), func(t threshold.Threshold) bool { return t.Signal != of })
}

// Rank puts the pods in the order in which they would go, and says why.
func (v *View) Rank(ctx context.Context, of signal.Signal) ([]rank.Line, error) {
	pods, err := v.Node.Ranked(ctx, of)
	if err != nil {
		return nil, fmt.Errorf("rank pods: %w", err)
	}
	return rank.Explain(pods, of), nil
}

// Simulate says for each threshold of a signal who would go if only so much were left.
func (v *View) Simulate(ctx context.Context, of signal.Signal, available int64) ([]Simulation, error) {
	readings, err := v.Reader.Read(ctx)
	now, ok := readings[of]
	if !ok {
		return nil, fmt.Errorf("read %s: %w", of, err)
	}
	pods, err := v.Node.Ranked(ctx, of)
	if err != nil {
		return nil, fmt.Errorf("simulate eviction: %w", err)
	}
	out := []Simulation{}
	for _, t := range v.thresholds(of) {
		at := t.At(now.Capacity)
		out = append(out, Simulation{
			of, available, t.Kind(), t.Value.Format(of), at, rank.Simulate(pods, of, available, at, t.Enough(now.Capacity)-at),
		})
	}
	return out, nil
}

// Decisions are those that are remembered, the oldest first.
func (v *View) Decisions() []eviction.Decision { return v.Node.history.all() }

// shown are the conditions as the API has them.
func (n *Node) shown() []Condition {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := []Condition{}
	for _, c := range n.conditions {
		status := corev1.ConditionFalse
		if c.Status {
			status = corev1.ConditionTrue
		}
		out = append(out, Condition{c.Type, status, c.Reason, c.Message, c.Since})
	}
	return out
}

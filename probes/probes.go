// Package probes asks containers whether they have started, live and are ready: one loop a probe, four ways to ask.
//
// A loop is begun with [Run] when its container runs and ends with its context. It reports a [Result] when the answer
// changes, after the thresholds of the probe; what follows from a result (a restart, a condition) is the caller's.
package probes

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Kind is which question a probe asks.
type Kind string

// The kinds of probes.
const (
	Startup   Kind = "Startup"
	Liveness  Kind = "Liveness"
	Readiness Kind = "Readiness"
)

// PeriodAnnotation on a pod sets the period of all its probes in milliseconds, for periods under the API's least of a
// second.
const PeriodAnnotation = "berth.node/probe-period-ms"

// minPeriod is the least period that the annotation may ask for: below it, asking costs more than most servers.
const minPeriod = 10 * time.Millisecond

// MaxOutput is what is kept of what an answer says, in bytes: of the body of an HTTP server's, or of the output of a
// command.
const MaxOutput = 10 << 10

// Result is the state of a probe after its thresholds.
type Result struct {
	OK bool
	// Message is the last answer, for events: "HTTP probe failed with statuscode: 500".
	Message string
}

// Outcome is one answer.
type Outcome int

// The outcomes. Unknown (the question could not be put) changes nothing, as under kubelet.
const (
	Success Outcome = iota
	Failure
	Unknown
)

// ErrNotAsked is of a question that could not be put, whatever became of its time: the container is not to blame.
var ErrNotAsked = errors.New("could not be asked")

// Exec runs a command in the probed container and kills all of it when ctx ends. Of its output no more than [MaxOutput]
// is used.
type Exec func(ctx context.Context, command []string) (code int, output []byte, err error)

// Target is where a probe asks.
type Target struct {
	PodIP     string
	Container *corev1.Container // for ports by name
	Exec      Exec
}

// A Question puts a probe's question once. The context carries the probe's timeout.
type Question func(ctx context.Context) (Outcome, string)

// New makes the question of a probe. It fails when the probe names a port that the container does not have. An answer
// says no more than [MaxOutput] bytes, whatever the container has sent: it becomes part of events and of the pod's
// status.
func New(p *corev1.Probe, t Target) (Question, error) {
	q, err := handler(p, t)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (Outcome, string) {
		outcome, said := q(ctx)
		if len(said) > MaxOutput {
			said = strings.Clone(said[:MaxOutput]) // the rest is not kept alive
		}
		return outcome, said
	}, nil
}

func handler(p *corev1.Probe, t Target) (Question, error) {
	switch {
	case p.Exec != nil:
		return execQuestion(p.Exec, t.Exec), nil
	case p.HTTPGet != nil:
		return httpQuestion(p.HTTPGet, t)
	case p.TCPSocket != nil:
		return tcpQuestion(p.TCPSocket, t)
	case p.GRPC != nil:
		return grpcQuestion(p.GRPC, t), nil
	}
	return nil, fmt.Errorf("make probe: it has no handler")
}

// Period returns how often the probe of a pod asks.
func Period(pod *corev1.Pod, p *corev1.Probe) (time.Duration, error) {
	s, ok := pod.Annotations[PeriodAnnotation]
	if !ok {
		return time.Duration(p.PeriodSeconds) * time.Second, nil
	}
	ms, err := strconv.Atoi(s)
	if err != nil || time.Duration(ms)*time.Millisecond < minPeriod {
		return 0, fmt.Errorf("%q is not a number of milliseconds from %d on", s, minPeriod.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}

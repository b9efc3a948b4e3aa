package plan

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/spec"
)

// ProbeState is what a probe has come to by its thresholds.
type ProbeState int

// The states of a probe.
const (
	ProbeUnknown ProbeState = iota // not asked often enough yet
	ProbePassed
	ProbeFailed
)

// ProbeResults are the states of the probes of one container. They count for that container only: its successor starts
// over.
type ProbeResults struct {
	Startup, Liveness, Readiness ProbeState
}

// verdict says why a running container has to be restarted, "" when it has not, and how much grace it has.
func (r ProbeResults) verdict(c *corev1.Container, grace time.Duration) (string, time.Duration) {
	kind, probe := "", (*corev1.Probe)(nil)
	switch {
	case c.LivenessProbe != nil && r.Liveness == ProbeFailed:
		kind, probe = "liveness", c.LivenessProbe
	case c.StartupProbe != nil && r.Startup == ProbeFailed:
		kind, probe = "startup", c.StartupProbe
	default:
		return "", 0
	}
	if g := probe.TerminationGracePeriodSeconds; g != nil {
		grace = spec.Seconds(*g)
	}
	return fmt.Sprintf("Container %s failed %s probe, will be restarted", c.Name, kind), grace
}

package nodelifecycle

import (
	"fmt"
	"math"
	"time"
)

const (
	// fewNodes is how many nodes of a zone may be lost, whatever part of it they are, without the zone being taken for
	// cut off.
	fewNodes = 2
	// askAgain is when to look again at a node of a zone that is cut off: nothing else may happen that tells of it.
	askAgain = 10 * time.Second
	// soon keeps what is due from being asked for without a pause.
	soon = 100 * time.Millisecond
	// slowest is the lowest rate but none: one node in a year.
	slowest = 1.0 / (365 * 24 * 3600)
)

// Rules say when nodes are lost and how fast they are given up.
type Rules struct {
	// Grace is how long a node may be silent; a new one has StartGrace.
	Grace, StartGrace time.Duration
	// Rate is how many nodes of a zone are given up each second: what takes many away at once is rather between them
	// and here. SlowRate is that of a zone that is cut off; zero: none is.
	Rate, SlowRate float64
	// Disrupted is which part of a zone's nodes is not ready where it is the zone that is cut off.
	Disrupted float64
	// LargeZone is how many nodes a zone has more than in which even then some are given up, at SlowRate.
	LargeZone int
}

// Defaults are Kubernetes' numbers.
func Defaults() Rules {
	// A node that reconnects has to find out first that its connection is dead, which takes 45 seconds.
	return Rules{Grace: 50 * time.Second, StartGrace: time.Minute, Rate: 0.1, SlowRate: 0.01, Disrupted: 0.55, LargeZone: 50}
}

// Check refuses rules that cannot be kept to. Their names are those of the flags.
func (r Rules) Check() error {
	for name, d := range map[string]time.Duration{"node-monitor-grace-period": r.Grace, "node-startup-grace-period": r.StartGrace} {
		if d <= 0 {
			return fmt.Errorf("--%s %s: it must be more than 0", name, d)
		}
	}
	for name, rate := range map[string]float64{"node-eviction-rate": r.Rate, "secondary-node-eviction-rate": r.SlowRate} {
		if rate != 0 && !(rate >= slowest && rate <= math.MaxInt32) {
			return fmt.Errorf("--%s %v: it must be 0, or a number of nodes per second", name, rate)
		}
	}
	if !(r.Disrupted > 0 && r.Disrupted <= 1) {
		return fmt.Errorf("--unhealthy-zone-threshold %v: it must be more than 0, and 1 at most", r.Disrupted)
	}
	if r.LargeZone < 0 {
		return fmt.Errorf("--large-cluster-size-threshold %d: it must be 0 or more", r.LargeZone)
	}
	return nil
}

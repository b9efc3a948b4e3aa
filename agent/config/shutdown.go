package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-node/berth/agent/shutdown"
)

// Shutdown is how long pods may take to end when the machine is shut down.
type Shutdown struct {
	GracePeriod         time.Duration
	GracePeriodCritical time.Duration // of it, for critical pods alone
	GraceByPriority     []string      // PRIORITY=DURATION, instead of these two
}

// shutdownFlags are the flags of a [Shutdown].
var shutdownFlags = []string{
	"shutdown-grace-period", "shutdown-grace-period-critical-pods", "shutdown-grace-period-by-pod-priority",
}

// machineShutdown is that of the machine's own agent which was told nothing. Without it systemd ends the pods last of
// all: with a signal that a process 1 of a container does not hear unless it has asked to, 90 seconds in which nothing
// else happens, and no hook of theirs. Who has a KubeletConfiguration has kubelet's default, which is not to wait.
func machineShutdown() Shutdown {
	return Shutdown{GracePeriod: 30 * time.Second, GracePeriodCritical: 10 * time.Second}
}

// AddFlags adds the flags to fs.
func (s *Shutdown) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&s.GracePeriod, "shutdown-grace-period", s.GracePeriod,
		"how long a shutdown of the machine waits for pods to end (0: it does not; default 30s, of which 10s for critical "+
			"pods, for the machine's own agent without a KubeletConfiguration)")
	fs.DurationVar(&s.GracePeriodCritical, "shutdown-grace-period-critical-pods", s.GracePeriodCritical,
		"the last part of that time, for critical pods")
	fs.StringSliceVar(&s.GraceByPriority, "shutdown-grace-period-by-pod-priority", s.GraceByPriority,
		"instead of these two, PRIORITY=DURATION for pods of that priority and above")
}

// Periods are what the settings ask for; none when a shutdown does not wait.
func (s *Shutdown) Periods() ([]shutdown.Period, error) {
	if len(s.GraceByPriority) == 0 {
		return s.twoPeriods()
	}
	if s.GracePeriod != 0 || s.GracePeriodCritical != 0 {
		return nil, errors.New("--shutdown-grace-period-by-pod-priority is given instead of --shutdown-grace-period and " +
			"--shutdown-grace-period-critical-pods, not with them")
	}
	var out []shutdown.Period
	seen := map[int32]bool{}
	for _, one := range s.GraceByPriority {
		p, g, _ := strings.Cut(one, "=")
		priority, err := strconv.ParseInt(p, 10, 32)
		grace, gerr := time.ParseDuration(g)
		if err != nil || gerr != nil || grace < 0 {
			return nil, fmt.Errorf("--shutdown-grace-period-by-pod-priority %q: must be PRIORITY=DURATION", one)
		}
		if seen[int32(priority)] {
			return nil, fmt.Errorf("--shutdown-grace-period-by-pod-priority %q: this priority was named before", one)
		}
		seen[int32(priority)] = true
		out = append(out, shutdown.Period{Priority: int32(priority), Grace: grace})
	}
	return out, nil
}

func (s *Shutdown) twoPeriods() ([]shutdown.Period, error) {
	for flag, d := range map[string]time.Duration{
		"shutdown-grace-period":               s.GracePeriod,
		"shutdown-grace-period-critical-pods": s.GracePeriodCritical,
	} {
		if d < 0 || d > 0 && d < time.Second {
			return nil, fmt.Errorf("--%s %s: must be 0 or at least 1s", flag, d)
		}
	}
	if s.GracePeriodCritical > s.GracePeriod {
		return nil, fmt.Errorf("--shutdown-grace-period-critical-pods %s is part of --shutdown-grace-period, which is %s",
			s.GracePeriodCritical, s.GracePeriod)
	}
	if s.GracePeriod == 0 {
		return nil, nil
	}
	return shutdown.Periods(s.GracePeriod, s.GracePeriodCritical), nil
}

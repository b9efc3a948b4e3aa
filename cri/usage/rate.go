// Package usage is what groups and networks use, as the CRI says it.
package usage

import (
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
)

// rateSpan is the least time that a rate is told by. Of less, the kernel's ticks would make more than what is measured.
const rateSpan = 100 * time.Millisecond

// Rate is how much CPU time a group uses at present: that since somebody asked before. Kubelet reckons it itself for
// containers and takes the runtime's word for pods.
type Rate struct {
	mu     sync.Mutex
	at     time.Time
	usage  uint64                  // then, in nanoseconds
	latest *runtimeapi.UInt64Value // nil before there was time
}

func (r *Rate) see(u cgroups.Usage) *runtimeapi.UInt64Value {
	r.mu.Lock()
	defer r.mu.Unlock()
	took := u.Time.Sub(r.at)
	switch {
	case r.at.IsZero() || u.CPU.UsageNs < r.usage: // what has ended takes its use along, where it is a sum
		r.at, r.usage = u.Time, u.CPU.UsageNs
	case took >= rateSpan:
		r.latest = Value(uint64(float64(u.CPU.UsageNs-r.usage) / took.Seconds()))
		r.at, r.usage = u.Time, u.CPU.UsageNs
	}
	return r.latest
}

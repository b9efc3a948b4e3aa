package oom

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// Count is how many processes the kernel has killed in a group for want of memory, with v2 also in those below it. It
// forgets the count with the group.
func Count(h *cgroups.Hierarchy, group string) (uint64, error) {
	file := "/memory.oom_control"
	if h.Mode() == cgroups.Unified {
		file = "/memory.events"
	}
	text, err := kernfs.ReadString(h.MemoryDir(group) + file)
	if err != nil {
		return 0, fmt.Errorf("count kills: %w", err)
	}
	return counter(text, "oom_kill"), nil
}

// MachineCount is how many it has killed on the whole machine since that was started.
func MachineCount() (uint64, error) {
	f, err := os.Open("/proc/vmstat")
	if err != nil {
		return 0, fmt.Errorf("count kills: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxStat)) // the kernel hands it out by pages
	if err != nil {
		return 0, fmt.Errorf("count kills: %w", err)
	}
	return counter(string(text), "oom_kill"), nil
}

// maxStat is more than /proc/vmstat has.
const maxStat = 64 << 10

func counter(text, name string) uint64 {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && key == name {
			n, err := strconv.ParseUint(value, 10, 63)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// Limit is one in bytes. 0 is none, and null in JSON.
type Limit uint64

// MarshalJSON implements [json.Marshaler].
func (l Limit) MarshalJSON() ([]byte, error) {
	if l == 0 {
		return []byte("null"), nil
	}
	return strconv.AppendUint(nil, uint64(l), 10), nil
}

// UnmarshalJSON implements [json.Unmarshaler].
func (l *Limit) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*l = 0
		return nil
	}
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return fmt.Errorf("read limit: %w", err)
	}
	*l = Limit(n)
	return nil
}

// Figures are what the files of a group say, a moment after a kill.
type Figures struct {
	Time  time.Time `json:"time"`
	Group string    `json:"group"`
	Usage uint64    `json:"usageBytes"`
	Limit Limit     `json:"limitBytes"`
	Peak  uint64    `json:"peakBytes,omitempty"` // since the group was made; 0: the kernel does not tell
	Anon  uint64    `json:"anonBytes"`
	File  uint64    `json:"fileBytes"`
	Shmem uint64    `json:"shmemBytes"`
	// KernelStack and Slab v1 does not tell apart.
	KernelStack uint64            `json:"kernelStackBytes,omitempty"`
	Slab        uint64            `json:"slabBytes,omitempty"`
	Swap        uint64            `json:"swapBytes,omitempty"`
	SwapLimit   *uint64           `json:"swapLimitBytes"` // nil: none
	Kills       uint64            `json:"kills"`          // so far
	LimitHits   uint64            `json:"limitHits,omitempty"`
	Pressure    *cgroups.Pressure `json:"memoryPressure,omitempty"` // nil: the kernel does not tell
	Tasks       uint64            `json:"tasks"`
}

// Look reads the figures of a group.
func Look(h *cgroups.Hierarchy, group string) (Figures, error) {
	s, err := h.OpenSampler(group)
	if err != nil {
		return Figures{}, err
	}
	defer s.Close()
	var u cgroups.Usage
	if err := s.Sample(&u); err != nil {
		return Figures{}, err
	}
	m := u.Memory
	f := Figures{
		Time: u.Time, Group: group, Usage: m.Usage, Peak: m.Peak, Anon: m.RSS, File: m.Cache, Shmem: m.Shmem,
		KernelStack: m.KernelStack, Slab: m.Slab, Swap: m.Swap, Kills: m.OOMKills, LimitHits: m.LimitHits, Tasks: u.Pids.Current,
	}
	if m.Limit != cgroups.NoLimit {
		f.Limit = Limit(m.Limit)
	}
	if m.SwapLimit != cgroups.NoLimit {
		f.SwapLimit = new(m.SwapLimit)
	}
	if u.PSI != nil {
		f.Pressure = new(u.PSI.Memory)
	}
	return f, nil
}

// tops are the groups that a report has the figures of: each once, in this order.
func tops(groups ...string) []string {
	var out []string
	for _, g := range groups {
		if g != "" && g != "/" && !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

// LookAll reads the figures of groups, those that there are.
func LookAll(h *cgroups.Hierarchy, groups ...string) []Figures {
	var out []Figures
	for _, g := range tops(groups...) {
		if f, err := Look(h, g); err == nil { // else it is gone with its last process
			out = append(out, f)
		}
	}
	return out
}

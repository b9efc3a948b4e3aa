package inspect

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"

	"github.com/berth-node/berth/cgroups"
)

// limitKind is a resource that groups limit, and each the groups in it: what holds is the least on the way to the root.
type limitKind struct {
	name, unit string
	v1, v2     string // file
}

func limitKinds() []limitKind {
	return []limitKind{
		{"memory", "bytes", "memory.limit_in_bytes", "memory.max"},
		{"CPU", "cores", "cpu.cfs_quota_us", "cpu.max"},
		{"tasks", "count", "pids.max", "pids.max"},
	}
}

// Tightest is the limit that holds for a group: its own, or that of a group it is in, whoever set it.
type Tightest struct {
	Resource string  `json:"resource"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"` // bytes, cores, count
	Path     string  `json:"path"` // of the group that has it
	Own      bool    `json:"own"`
}

func (t Tightest) String() string {
	return t.Resource + " " + format(t.Value, t.Unit) + " of " + t.Path
}

// limit is the group's limit of a resource; false without one.
func (g Group) limit(k limitKind, m cgroups.Mode) (float64, bool) {
	file := k.v1
	if m == cgroups.Unified {
		file = k.v2
	}
	text := g.value(file + "#0")
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v < 0 || k.unit == "bytes" && v >= 1<<62 {
		return 0, false
	}
	if k.unit == "cores" {
		period := g.value("cpu.cfs_period_us#0")
		if m == cgroups.Unified {
			period = g.value("cpu.max#1")
		}
		us, err := strconv.ParseFloat(period, 64)
		if err != nil || us <= 0 {
			return 0, false
		}
		v /= us
	}
	return v, true
}

// tightest are the limits that hold for a group.
func (n *Node) tightest() []Tightest {
	var out []Tightest
	m := n.snap.Machine.Mode
	for _, k := range limitKinds() {
		var best *Tightest
		for p := n.Path; ; p = path.Dir(p) {
			g, ok := n.snap.Groups[p]
			if !ok {
				g = n.snap.Above[p]
			}
			// Of equal ones the innermost is told: it is the one that is reached.
			if v, ok := g.limit(k, m); ok && (best == nil || v < best.Value) {
				best = &Tightest{k.name, v, k.unit, p, p == n.Path}
			}
			if p == "/" || p == "." {
				break
			}
		}
		if best != nil {
			out = append(out, *best)
		}
	}
	return out
}

// readAbove reads the limits of the groups that those of all pods are in: somebody may have limited these.
func readAbove(h *cgroups.Hierarchy, s *Snapshot) {
	s.Above = map[string]Group{}
	for _, top := range tops(s.Machine.Root) {
		if !h.Exists(top) {
			continue
		}
		for p := path.Dir(top); ; p = path.Dir(p) {
			g := Group{Files: map[string]string{}}
			for _, dir := range h.Dirs(p) {
				for _, f := range []string{"memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max", "pids.max"} {
					if data, err := os.ReadFile(dir + "/" + f); err == nil {
						g.Files[f] = string(data)
					}
				}
			}
			s.Above[p] = g
			if p == "/" {
				break
			}
		}
	}
}

// explainLimits says whose limits hold where they are not the pod's own.
func explainLimits(n *Node) []string {
	var out []string
	for _, t := range n.tightest() {
		if !t.Own && !below(t.Path, n.podPath()) {
			out = append(out, fmt.Sprintf("%s may have no more %s than %s, the limit of group %s that it is in.", who(n), t.Resource, format(t.Value, t.Unit), t.Path))
		}
	}
	return out
}

// podPath is the group of the pod that a group is in.
func (n *Node) podPath() string {
	if n.Kind == kindContainer {
		return path.Dir(n.Path)
	}
	return n.Path
}

// overruled are pods whose own limit says more than a group has that they are in. What berth and kubelet give the class
// and all pods by the node's settings is as it should be.
func (a audit) overruled(n *Node) []Problem {
	var out []Problem
	for _, k := range limitKinds() {
		own, ok := n.files.limit(k, a.snap.Machine.Mode)
		if !ok {
			continue
		}
		for _, t := range n.tightest() {
			if t.Resource != k.name || t.Own || t.Value >= own {
				continue
			}
			_, class := a.snap.Groups[t.Path]
			if slices.Contains(tops(a.snap.Machine.Root), t.Path) || class && a.options.QoSReserved > 0 {
				continue
			}
			out = append(out, Problem{"limited", n.Path, n.Title, fmt.Sprintf("its limit of %s is %s, but group %s that it is in has no more than %s", k.name, format(own, k.unit), t.Path, format(t.Value, t.Unit))})
		}
	}
	return out
}

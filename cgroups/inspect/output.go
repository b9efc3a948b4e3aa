package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/cgroups"
)

// ErrUsage marks what is wrong with the command line.
var ErrUsage = errors.New("wrong usage")

type usageError struct{ error }

func (usageError) Is(target error) bool { return target == ErrUsage }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func (a *app) checkOutput() error {
	if !slices.Contains([]string{"", "json", "yaml", "wide"}, a.output) {
		return usagef("output %q is not json, yaml or wide", a.output)
	}
	return nil
}

// schemaVersion changes when a field of the commands' JSON goes or means something else; that there are more changes
// nothing.
const schemaVersion = 1

// schema is in the JSON of every command.
type schema struct {
	SchemaVersion int `json:"schemaVersion"`
}

var thisSchema = schema{schemaVersion}

// machines says whether the output is for programs.
func (a *app) machines() bool { return a.output == "json" || a.output == "yaml" }

// encode writes one value for programs: with line, several follow, each a line of JSON or a document of YAML.
func (a *app) encode(w io.Writer, v any, line bool) error {
	var out bytes.Buffer // with what YAML does not allow as it is escaped
	if err := json.NewEncoder(machineReadable{&out}).Encode(v); err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	data := out.Bytes()
	switch {
	case a.output == "yaml":
		var err error
		if data, err = yaml.JSONToYAML(data); err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		if line {
			data = append([]byte("---\n"), data...)
		}
		_, err = machineReadable{w}.Write(data)
		return err
	case !line:
		data = indented(data)
	}
	_, err := w.Write(data)
	return err
}

// indented is what [json.Indent] makes of what the encoder writes, by four blanks a level as kubectl does. What the
// encoder writes is JSON without any white space, so that nothing has to be looked at but where strings end.
func indented(text []byte) []byte {
	out := make([]byte, 0, 2*len(text))
	depth := 0
	line := func() {
		out = append(out, '\n')
		for range depth {
			out = append(out, "    "...)
		}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			end := i + 1
			for ; text[end] != '"'; end++ {
				if text[end] == '\\' {
					end++
				}
			}
			out = append(out, text[i:end+1]...)
			i = end
		case '{', '[':
			out = append(out, c)
			if next := text[i+1]; next == '}' || next == ']' {
				out = append(out, next)
				i++
				continue
			}
			depth++
			line()
		case '}', ']':
			depth--
			line()
			out = append(out, c)
		case ',':
			out = append(out, c)
			line()
		case ':':
			out = append(out, ": "...)
		default:
			out = append(out, c)
		}
	}
	return out
}

// list is v, or an empty list where there is none: programs need not tell null from nothing.
func list[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}

// limited is nil, null in JSON, for what has no limit.
func limited(v uint64) *uint64 {
	if v >= cgroups.NoLimit {
		return nil
	}
	return &v
}

// Figures are what a group uses, with the unit in each name; null is unlimited.
type Figures struct {
	CPUUsageNs         uint64   `json:"cpuUsageNs"`
	CPUUserNs          uint64   `json:"cpuUserNs"`
	CPUSystemNs        uint64   `json:"cpuSystemNs"`
	CPULimitCores      *float64 `json:"cpuLimitCores"`
	Periods            uint64   `json:"periodsCount"`
	ThrottledPeriods   uint64   `json:"throttledPeriodsCount"`
	ThrottledNs        uint64   `json:"throttledNs"`
	MemoryUsageBytes   uint64   `json:"memoryUsageBytes"`
	WorkingSetBytes    uint64   `json:"workingSetBytes"`
	InactiveFileBytes  uint64   `json:"inactiveFileBytes"`
	RSSBytes           uint64   `json:"rssBytes"`
	CacheBytes         uint64   `json:"cacheBytes"`
	PeakBytes          uint64   `json:"peakBytes"`
	MemoryLimitBytes   *uint64  `json:"memoryLimitBytes"`
	AvailableBytes     *uint64  `json:"availableBytes"`
	SwapBytes          uint64   `json:"swapBytes"`
	MajorFaults        uint64   `json:"majorFaultsCount"`
	OOMKills           uint64   `json:"oomKillsCount"`
	LimitHits          uint64   `json:"limitHitsCount"`
	Pids               uint64   `json:"pidsCount"`
	PidsLimit          *uint64  `json:"pidsLimitCount"`
	ReadBytes          uint64   `json:"readBytes"`
	WriteBytes         uint64   `json:"writeBytes"`
	ReadOps            uint64   `json:"readOpsCount"`
	WriteOps           uint64   `json:"writeOpsCount"`
	CPUPressurePercent *float64 `json:"cpuPressurePercent"` // of the last 10 s; null where the kernel keeps none
	MemPressurePercent *float64 `json:"memoryPressurePercent"`
	IOPressurePercent  *float64 `json:"ioPressurePercent"`
}

func figuresOf(n *Node) Figures {
	u := n.Usage
	f := Figures{
		CPUUsageNs: u.CPU.UsageNs, CPUUserNs: u.CPU.UserNs, CPUSystemNs: u.CPU.SystemNs,
		Periods: u.CPU.Periods, ThrottledPeriods: u.CPU.ThrottledPeriods, ThrottledNs: u.CPU.ThrottledNs,
		MemoryUsageBytes: u.Memory.Usage, WorkingSetBytes: u.Memory.WorkingSet, InactiveFileBytes: u.Memory.InactiveFile,
		RSSBytes: u.Memory.RSS, CacheBytes: u.Memory.Cache, PeakBytes: u.Memory.Peak, MemoryLimitBytes: limited(u.Memory.Limit),
		AvailableBytes: limited(u.Memory.Available), SwapBytes: u.Memory.Swap, MajorFaults: u.Memory.MajorFaults,
		OOMKills: u.Memory.OOMKills, LimitHits: u.Memory.LimitHits, Pids: u.Pids.Current, PidsLimit: limited(u.Pids.Limit),
		ReadBytes: u.IO.ReadBytes, WriteBytes: u.IO.WriteBytes, ReadOps: u.IO.ReadOps, WriteOps: u.IO.WriteOps,
	}
	if q, ok := n.quota(); ok {
		f.CPULimitCores = &q
	}
	if p := u.PSI; p != nil {
		f.CPUPressurePercent, f.MemPressurePercent, f.IOPressurePercent = &p.CPU.Some.Avg10, &p.Memory.Some.Avg10, &p.IO.Some.Avg10
	}
	return f
}

// groupJSON is a group in the JSON of tree, with those in it, and of explain, without.
type groupJSON struct {
	Name     string      `json:"name"`
	Path     string      `json:"path"`
	Kind     Kind        `json:"kind"`
	QoSClass string      `json:"qosClass,omitempty"`
	UID      string      `json:"uid,omitempty"`
	ID       string      `json:"id,omitempty"`
	Figures  Figures     `json:"figures"`
	Children []groupJSON `json:"children"`
}

func groupOf(n *Node, deep bool) groupJSON {
	g := groupJSON{n.Title, n.Path, n.Kind, string(n.Class), n.UID, n.ID, figuresOf(n), []groupJSON{}}
	if deep {
		for _, c := range n.Children {
			g.Children = append(g.Children, groupOf(c, true))
		}
	}
	return g
}

type treeJSON struct {
	schema
	Groups []groupJSON `json:"groups"`
}

func treeOf(tops []*Node) treeJSON {
	t := treeJSON{thisSchema, []groupJSON{}}
	for _, n := range tops {
		t.Groups = append(t.Groups, groupOf(n, true))
	}
	return t
}

// ranked is a process of the pod in the order of the OOM killer.
type ranked struct {
	Pid         int    `json:"pid"`
	Comm        string `json:"comm"`
	Container   string `json:"container"`
	OOMScore    int    `json:"oomScore"`
	OOMScoreAdj int    `json:"oomScoreAdj"`
	RSSBytes    int64  `json:"rssBytes"`
	Rank        int    `json:"rank"` // 1 is killed next when the node runs out
	Of          int    `json:"of"`
}

// evictionJSON is the pod's place in the order of eviction.
type evictionJSON struct {
	Rank            int    `json:"rank"` // 0: it is never evicted
	Of              int    `json:"of"`
	WorkingSetBytes uint64 `json:"workingSetBytes"`
	UsageBytes      int64  `json:"usageBytes"` // by which it is ranked: as memory.available is counted
	RequestBytes    int64  `json:"requestBytes"`
	Priority        int32  `json:"priority"`
}

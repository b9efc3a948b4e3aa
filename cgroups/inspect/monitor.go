package inspect

import (
	"cmp"
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// monitor measures every group again and again with files kept open.
type monitor struct {
	mu     sync.Mutex // a look may still be under way when the screen is left
	live   Live
	h      *cgroups.Hierarchy
	snap   *Snapshot // names and shape only; its groups carry no files
	groups map[string]*watched
	walked time.Time
	named  time.Time

	// wants are the files that are measured of a group by name, nil: none; without it all are measured of all.
	wants  func(n *Node) []string
	passed map[string]bool // groups of which it wants none
}

// How often new groups are looked for, and their names. Both cost far more than measuring.
const (
	walkEvery = time.Second
	nameEvery = 5 * time.Second
)

// watched is one group with its last two measurements.
type watched struct {
	sampler   *cgroups.Sampler
	node      *Node
	prev, cur cgroups.Usage
	kills     int64 // with those of groups in it, when they were last counted
}

func newMonitor(l Live) (*monitor, error) {
	h, err := cgroups.Open(l.CgroupMount)
	if err != nil {
		return nil, err
	}
	return &monitor{live: l, h: h, groups: map[string]*watched{}}, nil
}

func (m *monitor) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.groups {
		w.sampler.Close()
	}
	m.groups = map[string]*watched{}
}

// look measures everything once, and looks for groups that came and went when it is time.
func (m *monitor) look(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Sub(m.walked) >= walkEvery {
		if _, _, err := m.discover(ctx, now); err != nil {
			return err
		}
	}
	for path, w := range m.groups {
		w.prev = w.cur
		err := w.sampler.Sample(&w.cur)
		if errors.Is(err, unix.ENODEV) || errors.Is(err, os.ErrNotExist) {
			w.sampler.Close()
			delete(m.groups, path)
			continue
		}
		if err != nil {
			return err
		}
		w.node.Usage = w.cur
	}
	return nil
}

// discover walks the directories of one hierarchy and opens what is new.
func (m *monitor) discover(ctx context.Context, now time.Time) (came, went []*watched, err error) {
	s := &Snapshot{Groups: map[string]Group{}, Machine: Machine{Mode: m.h.Mode(), Root: m.live.root()}, nameOnly: true}
	for _, top := range tops(m.live.root()) {
		if m.h.Exists(top) {
			walkNames(m.h.MemoryDir("/"), top, s.Groups)
		}
	}
	fresh := m.snap == nil || now.Sub(m.named) >= nameEvery
	for p := range s.Groups {
		if _, ok := m.groups[p]; !ok && !m.passed[p] {
			fresh = true
		}
	}
	if fresh {
		if err := m.live.name(ctx, s); err != nil {
			return nil, nil, err
		}
		m.named = now
	} else {
		s.Names, s.Pods, s.PodsFrom = m.snap.Names, m.snap.Pods, m.snap.PodsFrom
	}
	m.snap, m.walked = s, now
	for path, w := range m.groups {
		if _, ok := s.Groups[path]; !ok {
			w.sampler.Close()
			delete(m.groups, path)
			went = append(went, w)
		}
	}
	m.passed = map[string]bool{}
	for _, n := range s.nodes().all() {
		w, ok := m.groups[n.Path]
		if !ok {
			sampler, err := m.open(n)
			if err != nil {
				continue // gone already
			}
			if sampler == nil {
				m.passed[n.Path] = true
				continue
			}
			w = &watched{sampler: sampler}
			m.groups[n.Path] = w
			came = append(came, w)
		}
		w.node = n
		n.Usage = w.cur
		if fresh {
			w.sampler.Refresh()
		}
	}
	return came, went, nil
}

// open is nil for a group that is not measured.
func (m *monitor) open(n *Node) (*cgroups.Sampler, error) {
	if m.wants == nil {
		return m.h.OpenSampler(n.Path)
	}
	files := m.wants(n)
	if len(files) == 0 {
		return nil, nil
	}
	return m.h.OpenSampler(n.Path, files...)
}

// walkNames finds the groups below one. A directory that has none in it, as most have, is not listed: it has forty
// files.
func walkNames(mount, path string, into map[string]Group) {
	walkInto(&kernfs.Reader{}, mount, path, into)
}

func walkInto(r *kernfs.Reader, mount, path string, into map[string]Group) {
	into[path] = Group{}
	d, names := r.List(mount + path)
	defer d.Close()
	for _, name := range names {
		kid := path + "/" + name
		if _, below, ok := d.Stat(name); ok && below == 0 {
			into[kid] = Group{}
			continue
		}
		walkInto(r, mount, kid, into)
	}
}

// Row is a line of top: what a group did between two measurements.
type Row struct {
	Name      string   `json:"name"`
	Path      string   `json:"path"`
	Kind      Kind     `json:"kind"`
	Cores     float64  `json:"cpuCores"`
	Quota     *float64 `json:"cpuLimitCores"`    // nil: no limit
	Throttled float64  `json:"throttledPercent"` // of the periods in between
	Memory    uint64   `json:"workingSetBytes"`
	Limit     *uint64  `json:"memoryLimitBytes"`
	Pids      uint64   `json:"pidsCount"`
	Read      float64  `json:"readBytesPerSecond"`
	Write     float64  `json:"writeBytesPerSecond"`
	CPUPSI    float64  `json:"cpuPressurePercent"`
	MemPSI    float64  `json:"memoryPressurePercent"`
	IOPSI     float64  `json:"ioPressurePercent"`
}

func (w *watched) row() Row {
	r := Row{
		Name: w.node.topName(), Path: w.node.Path, Kind: w.node.Kind, Memory: w.cur.Memory.WorkingSet,
		Limit: limited(w.cur.Memory.Limit), Pids: w.cur.Pids.Current,
	}
	if q, limited := w.node.quota(); limited {
		r.Quota = &q
	}
	if p := w.cur.PSI; p != nil {
		r.CPUPSI, r.MemPSI, r.IOPSI = p.CPU.Some.Avg10, p.Memory.Some.Avg10, p.IO.Some.Avg10
	}
	dt := w.cur.Time.Sub(w.prev.Time).Seconds()
	if w.prev.Time.IsZero() || dt <= 0 {
		return r
	}
	r.Cores = rate(w.prev.CPU.UsageNs, w.cur.CPU.UsageNs, dt) / 1e9
	r.Read = rate(w.prev.IO.ReadBytes, w.cur.IO.ReadBytes, dt)
	r.Write = rate(w.prev.IO.WriteBytes, w.cur.IO.WriteBytes, dt)
	if periods := w.cur.CPU.Periods - w.prev.CPU.Periods; periods > 0 && w.cur.CPU.Periods > w.prev.CPU.Periods {
		r.Throttled = 100 * float64(w.cur.CPU.ThrottledPeriods-w.prev.CPU.ThrottledPeriods) / float64(periods)
	}
	return r
}

func (n *Node) topName() string {
	if n.Kind != kindContainer {
		return n.Title
	}
	pod := n.UID
	if id, ok := n.snap.Names[n.UID]; ok && id.Name != "" {
		pod = id.Namespace + "/" + id.Name
	}
	return pod + "/" + n.Title
}

// rate is 0 when a counter went back, as after a group was made again.
func rate(prev, cur uint64, dt float64) float64 {
	if cur < prev {
		return 0
	}
	return float64(cur-prev) / dt
}

// sorts are the orders of top.
func sorts() []string { return []string{"cpu", "memory", "throttled", "io", "pressure", "name"} }

func sortRows(rows []Row, by string) {
	slices.SortFunc(rows, func(a, b Row) int {
		var c int
		switch by {
		case "memory":
			c = cmp.Compare(b.Memory, a.Memory)
		case "throttled":
			c = cmp.Compare(b.Throttled, a.Throttled)
		case "io":
			c = cmp.Compare(b.Read+b.Write, a.Read+a.Write)
		case "pressure":
			c = cmp.Compare(b.pressure(), a.pressure())
		case "cpu":
			c = cmp.Compare(b.Cores, a.Cores)
		}
		return cmp.Or(c, strings.Compare(a.Name, b.Name))
	})
}

func (r Row) pressure() float64 { return math.Max(r.CPUPSI, math.Max(r.MemPSI, r.IOPSI)) }

// rows are the lines of the last look; containers says whether to show them or only pods.
func (m *monitor) rows(by string, containers bool) []Row {
	var out []Row
	for _, w := range m.groups {
		switch w.node.Kind {
		case kindContainer:
			if !containers || w.node.Title == sandboxName {
				continue
			}
		case kindPod:
			if containers {
				continue
			}
		default:
			continue
		}
		r := w.row()
		if w.node.Kind == kindPod {
			for _, c := range w.node.Children { // each has a quota of its own, and the pod is as slow as the slowest
				if k := m.groups[c.Path]; k != nil {
					r.Throttled = max(r.Throttled, k.row().Throttled)
				}
			}
		}
		out = append(out, r)
	}
	sortRows(out, by)
	return out
}

package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/berth-node/berth/cgroups"
)

// Event is a line of watch.
type Event struct {
	Time time.Time `json:"time"`
	What string    `json:"what"` // oom, throttled, limit, pressure, pids, created, removed
	Name string    `json:"name"`
	Path string    `json:"path"`
	Text string    `json:"text"`
}

// watch prints what changes until the context ends.
func (a *app) watch(ctx context.Context, w io.Writer, every time.Duration) error {
	m, err := newMonitor(a.live)
	if err != nil {
		return err
	}
	defer m.close()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for round := 0; ; round++ {
		quotas := map[string]float64{}
		for p, g := range m.groups {
			quotas[p] = g.quota
			g.sampler.Refresh() // limits are what we watch
		}
		came, went, err := m.look(ctx)
		if err != nil {
			return err
		}
		var events []Event
		if round > 0 { // what is there when we begin did not happen now
			events = m.events(came, went, quotas)
		}
		for _, e := range events {
			if err := a.printEvent(w, e); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (m *monitor) events(came, went []*watched, quotas map[string]float64) []Event {
	var out []Event
	for _, g := range came {
		out = append(out, g.event("created", string(g.node.Kind)))
	}
	for _, g := range went {
		out = append(out, g.event("removed", string(g.node.Kind)))
	}
	for p, g := range m.groups {
		if g.prev.Time.IsZero() {
			continue
		}
		for _, d := range differences(g.prev, g.cur, quotas[p], g.quota) {
			if d[0] == "oom" && !m.killedItself(p, g) {
				continue
			}
			out = append(out, g.event(d[0], d[1]))
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// killedItself says whether a group had more kills than those that are told of the groups below it, whose counts it has in its own.
func (m *monitor) killedItself(p string, g *watched) bool {
	below := uint64(0)
	for q, k := range m.groups {
		if path.Dir(q) == p && !k.prev.Time.IsZero() && k.cur.Memory.OOMKills > k.prev.Memory.OOMKills {
			below += k.cur.Memory.OOMKills - k.prev.Memory.OOMKills
		}
	}
	return g.cur.Memory.OOMKills-g.prev.Memory.OOMKills > below
}

func (w *watched) event(what, text string) Event {
	return Event{Time: time.Now(), What: what, Name: w.node.topName(), Path: w.node.Path, Text: text}
}

// differences tells what happened between two measurements of one group.
func differences(prev, cur cgroups.Usage, oldQuota, newQuota float64) [][2]string {
	var out [][2]string
	add := func(what, format string, args ...any) {
		out = append(out, [2]string{what, fmt.Sprintf(format, args...)})
	}
	if n := cur.Memory.OOMKills - prev.Memory.OOMKills; cur.Memory.OOMKills > prev.Memory.OOMKills {
		add("oom", "%d processes killed at %s of %s", n, b(prev.Memory.Usage), limitText(cur.Memory.Limit))
	}
	if n := cur.CPU.ThrottledPeriods - prev.CPU.ThrottledPeriods; cur.CPU.ThrottledPeriods > prev.CPU.ThrottledPeriods {
		add("throttled", "in %d of %d periods, %s", n, cur.CPU.Periods-prev.CPU.Periods, durationText(time.Duration(cur.CPU.ThrottledNs-prev.CPU.ThrottledNs)))
	}
	if prev.Memory.Limit != cur.Memory.Limit {
		add("limit", "memory %s -> %s", format(float64(prev.Memory.Limit), "bytes"), format(float64(cur.Memory.Limit), "bytes"))
	}
	if prev.Pids.Limit != cur.Pids.Limit {
		add("limit", "pids %s -> %s", countText(prev.Pids.Limit), countText(cur.Pids.Limit))
	}
	if oldQuota != newQuota {
		add("limit", "cpu %s -> %s cores", coresText(oldQuota), coresText(newQuota))
	}
	if p, c := prev.PSI, cur.PSI; p != nil && c != nil {
		for _, x := range []struct {
			name     string
			old, now float64
		}{{"memory", p.Memory.Some.Avg10, c.Memory.Some.Avg10}, {"io", p.IO.Some.Avg10, c.IO.Some.Avg10}, {"cpu", p.CPU.Some.Avg10, c.CPU.Some.Avg10}} {
			if x.old < pressureLine && x.now >= pressureLine {
				add("pressure", "%s: %.1f%% of the last 10 s waiting", x.name, x.now)
			}
		}
	}
	return out
}

// pressureLine is the percentage of waiting that is worth a line.
const pressureLine = 20

func countText(v uint64) string {
	if v == cgroups.NoLimit {
		return "max"
	}
	return fmt.Sprint(v)
}

func coresText(v float64) string {
	if v == 0 {
		return "max"
	}
	return format(v, "cores")
}

func (a *app) printEvent(w io.Writer, e Event) error {
	if a.output == "json" {
		return json.NewEncoder(w).Encode(e)
	}
	_, err := fmt.Fprintf(w, "%s  %-9s  %s  %s\n", e.Time.Format("15:04:05.000"), e.What, e.Name, e.Text)
	return err
}

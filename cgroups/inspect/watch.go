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
	What string    `json:"what"` // oom, throttled, limit, pressure, created, removed
	Name string    `json:"name"`
	Path string    `json:"path"`
	Text string    `json:"text"`
}

const (
	// together is how long more is waited for when the kernel has told of something: one act on a pod is many writes.
	together = 20 * time.Millisecond
	// killTime is how long after v1 has told of a lack of memory the kernel may take to kill somebody and count it.
	killTime = 2 * time.Second
	// pressureQuiet is how long after a line of pressure there is none of the same.
	pressureQuiet = 10 * time.Second
)

// watcher turns the kernel's notices into events.
type watcher struct {
	*monitor
	n      *notices
	dying  map[string]time.Time // groups out of memory, until when a kill may come
	pushed map[string]time.Time // lines of pressure, until when there are no more
}

// watch prints what happens until the context ends. What the kernel tells of is told at once; throttling, of which it does not
// tell, and what its notices have missed, is looked for as often as asked.
func (a *app) watch(ctx context.Context, out io.Writer, every time.Duration) error {
	m, err := newMonitor(a.live)
	if err != nil {
		return err
	}
	defer m.close()
	n, err := newNotices(m.h)
	if err != nil {
		return err
	}
	defer n.close()
	w := &watcher{monitor: m, n: n, dying: map[string]time.Time{}, pushed: map[string]time.Time{}}
	if _, err := w.shape(ctx); err != nil { // what is there when we begin did not happen now
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var events []Event
		var kill <-chan time.Time // none is due
		if len(w.dying) > 0 {
			kill = time.After(together)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-kill:
			events = w.killed()
		case first := <-n.C:
			events, err = w.told(ctx, w.gather(ctx, first))
		case <-tick.C:
			events, err = w.looked(ctx)
		}
		if err != nil {
			return err
		}
		for _, e := range events {
			if err := a.printEvent(out, e); err != nil {
				return err
			}
		}
	}
}

// gather takes what the kernel tells within a moment of the first.
func (w *watcher) gather(ctx context.Context, first notice) []notice {
	out := []notice{first}
	end := time.NewTimer(together)
	defer end.Stop()
	for {
		select {
		case n := <-w.n.C:
			out = append(out, n)
		case <-end.C:
			return out
		case <-ctx.Done():
			return out
		}
	}
}

// told makes events of notices.
func (w *watcher) told(ctx context.Context, batch []notice) ([]Event, error) {
	reshaped, all := false, false
	at := map[string]bool{}
	var out []Event
	for _, n := range batch {
		switch n.news {
		case "":
			all = true
		case shaped:
			reshaped = true
		case outOfMem:
			w.dying[n.path] = time.Now().Add(killTime)
			at[n.path] = true
		case pressed:
			out = append(out, w.pressed(n)...)
		default:
			at[n.path] = true
		}
	}
	// Kills first: the group they were in may be gone next.
	out = append(out, w.sample(func(g *watched) bool { return all || at[g.node.Path] })...)
	if reshaped || all {
		events, err := w.shape(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, events...)
	}
	return out, nil
}

// killed looks for the kills that v1 has announced: it tells of the want of memory before it has chosen whom to kill.
func (w *watcher) killed() []Event {
	now := time.Now()
	for p, until := range w.dying {
		if now.After(until) {
			delete(w.dying, p)
		}
	}
	return w.sample(func(g *watched) bool { _, dying := w.dying[g.node.Path]; return dying })
}

// looked finds what the kernel does not tell of: throttling, and on some kernels pressure.
func (w *watcher) looked(ctx context.Context) ([]Event, error) {
	out := w.sample(func(g *watched) bool {
		_, limited := g.node.quota()
		return limited || !w.n.triggers && g.node.Kind == kindPod
	})
	if time.Since(w.walked) < resyncEvery {
		return out, nil
	}
	events, err := w.shape(ctx)
	return append(out, events...), err
}

// resyncEvery is how often it is looked whether groups came or went that the kernel did not tell of.
const resyncEvery = 30 * time.Second

// shape finds the groups that came and went, and follows the new ones. What was made in them before they were followed is found by
// another look, which comes after what this one has found is told.
func (w *watcher) shape(ctx context.Context) ([]Event, error) {
	for _, top := range tops(w.live.root()) {
		w.n.above(top)
	}
	for path, g := range w.groups {
		w.n.follow(path, g.node.Kind)
	}
	came, went, err := w.discover(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	var out []Event
	for _, g := range went {
		if _, dying := w.dying[g.node.Path]; dying {
			out = append(out, g.event("oom", fmt.Sprintf("it ran out of memory at %s of %s, and is gone", b(g.cur.Memory.Usage), limitText(g.cur.Memory.Limit))))
			delete(w.dying, g.node.Path)
		}
		out = append(out, g.event("removed", string(g.node.Kind)))
	}
	for _, g := range came {
		w.n.follow(g.node.Path, g.node.Kind)
		_ = g.sampler.Sample(&g.cur) // what it begins with; if it is gone already the kernel tells
		out = append(out, g.event("created", string(g.node.Kind)))
	}
	if len(came) > 0 {
		select {
		case w.n.C <- notice{news: shaped}:
		default: // so much is told that the next tick has to look: nobody but us would make room
			w.walked = time.Time{}
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// sample measures some groups again and tells what has changed.
func (w *watcher) sample(which func(*watched) bool) []Event {
	var measured []string
	for p, g := range w.groups {
		if which(g) {
			measured = append(measured, p)
			g.prev = g.cur
			g.sampler.Refresh() // limits are what we watch
			if err := g.sampler.Sample(&g.cur); err != nil {
				g.cur = g.prev // it is gone, of which the kernel tells
			}
			g.node.Usage = g.cur
		}
	}
	var out []Event
	for _, p := range measured {
		g := w.groups[p]
		if g.prev.Time.IsZero() {
			continue
		}
		for _, d := range differences(g.prev, g.cur) {
			if d[0] == "oom" {
				if !w.killedItself(p, g) {
					continue
				}
				delete(w.dying, p)
			}
			out = append(out, g.event(d[0], d[1]))
		}
		if !w.n.triggers && g.node.Kind == kindPod {
			out = append(out, w.rising(g)...)
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// pressed tells of a trigger.
func (w *watcher) pressed(n notice) []Event {
	g := w.groups[n.path]
	if g == nil {
		return nil
	}
	u := g.cur
	if err := g.sampler.Sample(&u); err != nil {
		return nil
	}
	return w.pressure(g, n.what, "tasks waited for over a fifth of 2 s", pressures(u.PSI)[n.what])
}

// rising tells of pressure that is above the line in the last 10 s.
func (w *watcher) rising(g *watched) []Event {
	var out []Event
	for what, p := range pressures(g.cur.PSI) {
		if p.Some.Avg10 >= pressureLine {
			out = append(out, w.pressure(g, what, "tasks waited", p)...)
		}
	}
	return out
}

// pressureLine is the percentage of waiting that is worth a line.
const pressureLine = 20

// pressure makes a line, but not again and again while the pressure lasts.
func (w *watcher) pressure(g *watched, what, text string, p cgroups.Pressure) []Event {
	key := g.node.Path + " " + what
	again := time.Now().Before(w.pushed[key])
	w.pushed[key] = time.Now().Add(pressureQuiet)
	if again {
		return nil
	}
	return []Event{g.event("pressure", fmt.Sprintf("%s: %s; %.1f%% of the last 10 s, %.1f%% of the last minute", what, text, p.Some.Avg10, p.Some.Avg60))}
}

func pressures(p *cgroups.PSI) map[string]cgroups.Pressure {
	if p == nil {
		return nil
	}
	return map[string]cgroups.Pressure{"cpu": p.CPU, "memory": p.Memory, "io": p.IO}
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
func differences(prev, cur cgroups.Usage) [][2]string {
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
	if a, b := coresText(prev.CPU), coresText(cur.CPU); a != b {
		add("limit", "cpu %s -> %s cores", a, b)
	}
	return out
}

func countText(v uint64) string {
	if v == cgroups.NoLimit {
		return "max"
	}
	return fmt.Sprint(v)
}

func coresText(c cgroups.CPU) string {
	if c.QuotaUs == cgroups.NoLimit || c.PeriodUs == 0 {
		return "max"
	}
	return format(float64(c.QuotaUs)/float64(c.PeriodUs), "cores")
}

func (a *app) printEvent(w io.Writer, e Event) error {
	if a.output == "json" {
		return json.NewEncoder(w).Encode(e)
	}
	_, err := fmt.Fprintf(w, "%s  %-9s  %s  %s\n", e.Time.Format("15:04:05.000"), e.What, e.Name, e.Text)
	return err
}

package inspect

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/oom"
)

// Event is a line of watch.
type Event struct {
	Time time.Time `json:"time"`
	What string    `json:"what"` // oom, throttled, limit, pressure, created, removed
	Name string    `json:"name"`
	Path string    `json:"path"`
	Text string    `json:"text"`

	Kill *oom.Kill `json:"kill,omitempty"` // of oom, where the kernel's log has told of it
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
	book   *killBook
	slowed map[string]throttle
}

// watch prints what happens until the context ends. What the kernel tells of is told at once; throttling, of which it
// does not tell, and what its notices have missed, is looked for as often as asked.
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
	w := &watcher{monitor: m, n: n, dying: map[string]time.Time{}, pushed: map[string]time.Time{}, book: newKillBook(), slowed: map[string]throttle{}}
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	if err := w.book.followLog(ctx, a.live.kernelLog(), wait.Go); err != nil {
		if err := a.printEvent(out, logNote(err)); err != nil {
			return err
		}
	}
	if _, err := w.shape(ctx); err != nil { // what is there when we begin did not happen now
		return err
	}
	w.begin()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var events []Event
		var kill <-chan time.Time // none is due
		if len(w.dying) > 0 || len(w.book.owed) > 0 {
			kill = time.After(together)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-kill:
			events = w.killed()
		case k := <-w.book.log:
			events = w.logged(k)
		case err := <-w.book.ended:
			if ctx.Err() == nil {
				events = []Event{w.book.logEnded(err)}
			}
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
	return append(w.sample(func(g *watched) bool { _, dying := w.dying[g.node.Path]; return dying }), w.settle(now)...)
}

// looked finds what the kernel does not tell of: throttling, and on some kernels pressure.
func (w *watcher) looked(ctx context.Context) ([]Event, error) {
	out := w.sample(func(g *watched) bool {
		_, limited := g.node.quota()
		return limited || !w.n.triggers && g.node.Kind == kindPod
	})
	out = append(out, w.throttling()...)
	if time.Since(w.walked) < resyncEvery {
		return out, nil
	}
	events, err := w.shape(ctx)
	return append(out, events...), err
}

// throttle is what was told of a group's throttling.
type throttle struct {
	cpu   cgroups.CPU // at the last look
	share float64     // percentage of periods that was told, 0: none
	quiet int         // looks since without any
}

const (
	throttleChange = 25 // percentage points that are worth another line
	throttleQuiet  = 3  // looks without any, after which it is over
)

// throttling tells when a group begins to be throttled, when that changes much, and when it is over.
func (w *watcher) throttling() []Event {
	var out []Event
	for _, p := range slices.Sorted(maps.Keys(w.groups)) {
		g := w.groups[p]
		t, known := w.slowed[p]
		now, before := g.cur.CPU, t.cpu
		if t.cpu = now; !known || now.Periods <= before.Periods || now.ThrottledPeriods < before.ThrottledPeriods {
			if t.share > 0 {
				t.quiet++
			}
		} else if n := now.ThrottledPeriods - before.ThrottledPeriods; n == 0 {
			t.quiet++
		} else {
			periods := now.Periods - before.Periods
			share := 100 * float64(n) / float64(periods)
			if t.quiet = 0; t.share == 0 || math.Abs(share-t.share) >= throttleChange {
				t.share = share
				out = append(out, g.event("throttled", fmt.Sprintf("in %d of %d periods (%.0f%%), %s", n, periods, share, durationText(time.Duration(now.ThrottledNs-before.ThrottledNs)))))
			}
		}
		if t.share > 0 && t.quiet >= throttleQuiet {
			t.share = 0
			out = append(out, g.event("throttled", "no longer"))
		}
		w.slowed[p] = t
	}
	return out
}

// resyncEvery is how often it is looked whether groups came or went that the kernel did not tell of.
const resyncEvery = 30 * time.Second

// shape finds the groups that came and went, and follows the new ones. What was made in them before they were followed
// is found by another look, which comes after what this one has found is told.
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
		p, m := g.node.Path, g.cur.Memory
		uncounted := w.book.log == nil && g.kills == 0 && m.Limit != cgroups.NoLimit && m.Peak >= m.Limit
		out = append(out, w.left(g)...)
		// v1 signals the groups in one that runs out too; and its count goes with the group.
		if _, dying := w.dying[p]; dying && uncounted {
			out = append(out, g.event("oom", fmt.Sprintf("it ran out of memory at %s of %s, and is gone", b(g.cur.Memory.Usage), limitText(g.cur.Memory.Limit))))
		}
		delete(w.dying, g.node.Path)
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
	killed := false
	for _, p := range measured {
		g := w.groups[p]
		if g.prev.Time.IsZero() {
			continue
		}
		killed = killed || g.cur.Memory.OOMKills > g.prev.Memory.OOMKills
		for _, d := range differences(g.prev, g.cur) {
			out = append(out, g.event(d[0], d[1]))
		}
		if !w.n.triggers && g.node.Kind == kindPod {
			out = append(out, w.rising(g)...)
		}
	}
	if killed {
		out = append(out, w.account()...)
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

func (w *watched) event(what, text string) Event {
	return Event{Time: time.Now(), What: what, Name: w.node.topName(), Path: w.node.Path, Text: text}
}

// differences tells what happened between two measurements of one group.
func differences(prev, cur cgroups.Usage) [][2]string {
	var out [][2]string
	add := func(what, format string, args ...any) {
		out = append(out, [2]string{what, fmt.Sprintf(format, args...)})
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
	if a.machines() {
		return a.encode(w, struct {
			schema
			Event
		}{thisSchema, e}, true)
	}
	_, err := fmt.Fprintf(w, "%s  %-9s  %s  %s\n", e.Time.Format("15:04:05.000"), e.What, visible(e.Name), visible(e.Text))
	return err
}

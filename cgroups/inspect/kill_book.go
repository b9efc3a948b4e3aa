package inspect

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/oom"
)

// killBook has each kill told once: the kernel's log tells of it, and the counts of the group it was in and of those
// above grow. The log is the better witness, so what the counts say waits a moment for it.
type killBook struct {
	log      chan oom.Kill    // nil: the log cannot be read
	ended    chan error       // has why it cannot be read any more
	seen     map[string]int64 // kills of a group alone that the counts have told of
	gone     map[string]int64 // those of groups in it that are no more
	ahead    map[string]int64 // told by the log, and not counted yet
	owed     map[string]debt  // counted, and not told yet
	homeless []loggedKill     // of which the log does not say the group
}

type debt struct {
	n     int64
	until time.Time
	usage uint64 // of the group when it was last looked at before
}

type loggedKill struct {
	oom.Kill
	until time.Time
}

// logDelay is how much later than the counts the log may tell, when the machine has no CPU left for who reads it.
const logDelay = time.Second

func newKillBook() *killBook {
	return &killBook{seen: map[string]int64{}, gone: map[string]int64{}, ahead: map[string]int64{}, owed: map[string]debt{}}
}

// followLog hands on what the log tells until ctx ends; the error says why it cannot be read.
func (b *killBook) followLog(ctx context.Context, file string, wait func(func())) error {
	l, err := oom.OpenLog(file, true)
	if err != nil {
		return err
	}
	kills := make(chan oom.Kill)
	b.log, b.ended = kills, make(chan error, 1)
	wait(func() {
		defer l.Close()
		b.ended <- l.Follow(ctx, func(k oom.Kill) {
			select {
			case kills <- k:
			case <-ctx.Done():
			}
		})
	})
	return nil
}

// logEnded has the counts alone tell of kills from now on.
func (b *killBook) logEnded(err error) Event {
	b.log = nil
	return logNote(err)
}

// logNote says why kills are told without what only the log has.
func logNote(err error) Event {
	return Event{
		Time: time.Now(), What: "note",
		Text: "the kernel's log cannot be read, so kills are told by the groups' counts, without whose limit it was: " + err.Error(),
	}
}

// countKills reads the count of a group with those in it.
func (g *watched) countKills() int64 {
	u := g.cur
	g.sampler.Refresh() // on v2 a count whose group uses what it did before is not read again else
	if g.sampler.Sample(&u) == nil {
		g.kills = int64(u.Memory.OOMKills)
	} else { // it is going; either may have been read last
		g.kills = max(g.kills, int64(g.cur.Memory.OOMKills))
	}
	return g.kills
}

// regain takes back what was counted of a group that is gone and never was of the one above: on v1 that one counts what
// it has seen of the group, which may have been before the last kill. Else that much would be missing when it has kills
// of its own. Groups in it are counted before it, so that what is missing is missing for good.
func (w *watcher) regain(above string) {
	g := w.groups[above]
	if g == nil {
		return
	}
	var within int64
	for p, kid := range w.groups {
		if path.Dir(p) == above && p != above {
			within += kid.countKills()
		}
	}
	if missing := w.book.seen[above] - (g.countKills() - within - w.book.gone[above]); missing > 0 {
		w.book.gone[above] -= missing
	}
}

// own counts the kills of each group without those of the groups in it. Groups are counted before those in them, so
// that a kill that happens meanwhile is never one of the group above.
func (w *watcher) own() map[string]int64 {
	count := map[string]int64{}
	for _, p := range slices.Sorted(maps.Keys(w.groups)) {
		count[p] = w.groups[p].countKills()
	}
	out := maps.Clone(count)
	for p, n := range count {
		if above := path.Dir(p); above != p {
			if _, ok := out[above]; ok {
				out[above] -= n
			}
		}
		out[p] -= w.book.gone[p]
	}
	return out
}

// begin takes the kills so far as told.
func (w *watcher) begin() { w.book.seen = w.own() }

// account finds out in which groups there were kills.
func (w *watcher) account() []Event {
	b, now := w.book, time.Now()
	for p, n := range w.own() {
		grown := n - b.seen[p]
		if grown <= 0 {
			continue
		}
		b.seen[p] = n
		told := min(grown, b.ahead[p])
		b.ahead[p] -= told
		if grown -= told; grown > 0 {
			d := b.owed[p]
			if d.n == 0 {
				g := w.groups[p]
				d.until, d.usage = now, max(g.prev.Memory.Usage, g.cur.Memory.Usage)
				if b.log != nil {
					d.until = now.Add(logDelay)
				}
			}
			d.n += grown
			b.owed[p] = d
		}
	}
	return w.settle(now)
}

// settle tells what the log has not told in time.
func (w *watcher) settle(now time.Time) []Event {
	b := w.book
	var out []Event
	for p, d := range b.owed {
		for d.n > 0 && len(b.homeless) > 0 {
			k := b.homeless[0]
			b.homeless = b.homeless[1:]
			d.n--
			out = append(out, w.killEvent(k.Kill, p))
		}
		b.owed[p] = d
		g := w.groups[p]
		switch {
		case d.n == 0 || g == nil:
			delete(b.owed, p)
		case !now.Before(d.until):
			delete(b.owed, p)
			out = append(out, w.countedEvent(g, d))
		}
	}
	b.homeless = slices.DeleteFunc(b.homeless, func(k loggedKill) bool { return now.After(k.until) }) // somebody else's
	return out
}

// countedEvent tells of kills by the counts alone.
func (w *watcher) countedEvent(g *watched, d debt) Event {
	m := g.cur.Memory
	text := fmt.Sprintf("%s killed for want of memory; the group used %s before", count(uint64(d.n), "process", "processes"), bytesText(float64(max(d.usage, m.Usage))))
	switch {
	case m.Limit == cgroups.NoLimit:
		text += " and has no limit: it was that of a group above it, or the node ran out of memory"
	case m.Peak+(1<<20) >= m.Limit:
		text += " and has reached its limit of " + bytesText(float64(m.Limit))
	default:
		text += " of its limit of " + bytesText(float64(m.Limit)) + ": it was the limit of a group above it, or the node ran out of memory"
	}
	return g.event("oom", text)
}

// logged tells of a kill that the kernel's log has told of; of those of others nothing.
func (w *watcher) logged(k oom.Kill) []Event {
	b := w.book
	if k.Group == "" {
		b.homeless = append(b.homeless[max(0, len(b.homeless)-maxHomeless):], loggedKill{k, time.Now().Add(killTime)})
		return w.account()
	}
	if !slices.ContainsFunc(tops(w.live.root()), func(top string) bool { return below(k.Group, top) }) {
		return nil
	}
	counted := k.Group // the counts of a group that is gone are in those of the one above
	for w.groups[counted] == nil && counted != "/" {
		counted = path.Dir(counted)
	}
	if d := b.owed[counted]; d.n > 0 {
		d.n--
		b.owed[counted] = d
	} else if w.groups[counted] != nil {
		b.ahead[counted]++
	}
	return []Event{w.killEvent(k, k.Group)}
}

// maxHomeless bounds the kills that wait for the counts to say where they were.
const maxHomeless = 256

// killEvent is the one line of a kill: of the container it was in, with the group whose limit it was.
func (w *watcher) killEvent(k oom.Kill, group string) Event {
	at := func(p string) *Node {
		if g := w.groups[p]; g != nil {
			return g.node
		}
		return nil
	}
	e := Event{Time: k.Time, What: "oom", Name: group, Path: group, Kill: &k}
	victim := group
	for p := group; p != "/" && p != "."; p = path.Dir(p) {
		if n := at(p); n != nil && (n.Kind == kindContainer || n.Kind == kindPod || p == group && n.Kind != kindOther) {
			e.Name, victim = n.topName(), p
			break
		}
	}
	e.Text = k.Describe(w.snap.limitName(victim, &k, at))
	return e
}

// left forgets a group that is gone. What was counted of it is in the count of the group above.
func (w *watcher) left(g *watched) []Event {
	b, p := w.book, g.node.Path
	above := path.Dir(p)
	b.gone[above] += g.kills
	if g.kills > 0 {
		w.regain(above)
	}
	if n := b.ahead[p]; n > 0 {
		b.ahead[above] += n // counted there, and told
	}
	var out []Event
	if d := b.owed[p]; d.n > 0 {
		if b.log == nil {
			out = append(out, w.countedEvent(g, d))
		} else {
			d.until = time.Now().Add(logDelay)
			b.owed[above] = debt{b.owed[above].n + d.n, d.until, d.usage}
		}
	}
	for _, m := range []map[string]int64{b.seen, b.ahead, b.gone} {
		delete(m, p)
	}
	delete(b.owed, p)
	delete(w.slowed, p)
	return out
}

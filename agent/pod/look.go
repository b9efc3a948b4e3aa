package pod

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/plan"
)

// check looks at everything, and counts when events have not told of what there is.
func (w *worker) check(ctx context.Context) {
	w.observer.stale = true
	if w.observer.seen == nil || len(w.work.tasks) > 0 {
		return
	}
	before := w.observer.seen
	now, err := w.observer.look(ctx)
	if err != nil {
		return // the look that follows tells
	}
	if !before.Same(now) && w.mail.events.Load() == nil {
		w.node.missed.Add(1)
		w.log.Warn("the runtime's events have not told of a change")
	}
	w.see(now)
}

// look brings what is seen up to date, and says whether it is.
func (w *worker) look(ctx context.Context) bool {
	if !w.observer.stale {
		return true
	}
	now, err := w.observer.look(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.log.Warn("runtime does not tell what the pod does", "error", err)
		}
		return false
	}
	w.see(now)
	return true
}

func (w *worker) see(now *plan.Observed) {
	if now.Problem != "" && (w.observer.seen == nil || w.observer.seen.Problem == "") && !w.fate.hidden {
		w.node.event(w.pod, corev1.EventTypeWarning, ReasonNotAnswering, "%s", now.Problem)
	}
	w.observer.seen, w.observer.stale = now, false
	if w.node.dead.see(w.uid, now.Dead(w.uid)) {
		w.node.registry.ringAll()
	}
	said := map[string]string{}
	for _, list := range now.Containers {
		for i := range list {
			c := &list[i]
			if c.GetState() != plan.Exited {
				continue
			}
			text, known := w.observer.said[c.GetId()]
			if !known {
				text = w.lastWords(c)
			}
			said[c.GetId()] = text
		}
	}
	w.observer.said = said
	gone := func(id string, _ bool) bool { return now.Find(id) == nil }
	maps.DeleteFunc(w.tries.hooked, gone)
	maps.DeleteFunc(w.tries.refused, func(id string, _ plan.Failure) bool { return gone(id, true) })
}

func (w *worker) view() *plan.View {
	now := time.Now()
	unneeded, older := w.node.dead.unneeded(w.uid, now)
	busy := make(map[string]plan.Step, len(w.work.tasks))
	for key, t := range w.work.tasks {
		busy[key] = t.step
	}
	return &plan.View{
		Pod: w.pod, Now: now, Seen: w.observer.seen, Unneeded: unneeded, Older: older,
		Prepared: w.place.env != nil, Renew: w.place.renew, Finished: w.place.finished, Torn: w.place.torn,
		Deadline: w.deadline(), Busy: busy, Resized: *w.size.resized, Probes: w.probes, End: w.fate.end,
		Images: w.tries.images, Failed: w.tries.failed, Refused: w.tries.refused, Delays: w.node.cfg.Backoff,
	}
}

package pod

import (
	"time"

	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
)

// evict makes the pod end and stay known as one that the node has failed.
func (w *worker) evict(e *Eviction) {
	w.fate.evicted = e
	w.stop(plan.Ending{Since: time.Now(), Grace: spec.Seconds(e.GraceSeconds), Keep: true, Shed: e.sheds()})
}

// stop makes the pod end. What is being started is cut off; what is being ended is hurried when the new order is in
// more of a hurry.
func (w *worker) stop(e plan.Ending) {
	hurry := w.fate.end == nil || e.Since.Add(e.Grace).Before(w.fate.end.Since.Add(w.fate.end.Grace))
	if w.fate.end != nil {
		keep := e.Keep && w.fate.end.Keep
		shed := keep && (e.Shed || w.fate.end.Shed)
		if !hurry {
			e = *w.fate.end
		}
		e.Keep, e.Shed = keep, shed
	}
	w.fate.end = &e
	w.start.endTrace()
	end := w.termination()
	w.told.evicted.Store(end.Evicted)
	if err := writeTermination(w.node.cfg.RootDir, w.uid, end); err != nil {
		w.log.Warn("a restart of the agent may bring the pod back", "error", err)
	}
	w.work.cutOff(hurry)
}

// cutOff ends what is being started, and what is being ended if that is in more of a hurry now.
func (k *work) cutOff(hurry bool) {
	for _, t := range k.tasks {
		if k := t.step.Kind; k == plan.Prepare || k == plan.Image || k == plan.Start || k == plan.Kill && hurry {
			t.cancel()
		}
	}
}

func (w *worker) termination() termination {
	m := termination{Since: w.fate.end.Since, Grace: w.fate.end.Grace}
	if w.fate.end.Keep {
		m.Evicted = w.fate.evicted
	}
	return m
}

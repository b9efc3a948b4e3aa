package drift

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups/kube"
)

// watchedGroup is what was done about a group.
type watchedGroup struct {
	doubt int           // told at the last look, if that found differences and left them; 0 otherwise
	told  string        // the last differences, until there are none: they are told once
	pause time.Duration // before the next correction, longer each time that somebody insists
	calm  time.Time     // the end of that
}

func (d *drift) compareDue() {
	now := time.Now()
	for uid, at := range d.due {
		if at.After(now) {
			continue
		}
		delete(d.due, uid)
		w := d.pods[uid]
		if err := d.compare(w); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.logger(w).Warn("groups are not compared", "error", err)
		}
	}
}

// compare compares all groups of a pod with what they should have. The pod's own comes first: in v1 no group may have
// more of the CPU than its parent.
func (d *drift) compare(w *watched) error {
	if w.pod == nil {
		return d.cfg.Classes.Given(func(given []kube.Wanted) error { return d.compareWith(w, given) })
	}
	if resizing(w.pod) {
		return nil // the pod changes again when that is done
	}
	wanted, err := d.wanted(w.pod)
	if err != nil {
		return err
	}
	return d.compareWith(w, wanted)
}

func (d *drift) compareWith(w *watched, wanted []kube.Wanted) error {
	here := map[string]bool{}
	for _, want := range wanted {
		here[want.Path] = true
		g := w.groups[want.Path]
		if g == nil {
			g = &watchedGroup{}
			w.groups[want.Path] = g
		}
		// Watched first, so that no write falls between the look and the watch.
		if err := d.changes.Add(want.Path); err != nil {
			d.cfg.Log.Debug("a group is compared now and then only", "group", want.Path, "error", err)
		}
		diffs, err := d.cfg.Tree.Drift(want)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it ends just now
		case err != nil:
			return err
		default:
			d.act(w, want, g, diffs)
		}
	}
	for group := range w.groups {
		if !here[group] {
			d.changes.Remove(group)
			delete(w.groups, group)
		}
	}
	return nil
}

// act tells of differences, and corrects them if that is the policy.
func (d *drift) act(w *watched, want kube.Wanted, g *watchedGroup, diffs []kube.Difference) {
	if len(diffs) == 0 {
		g.doubt, g.told = 0, ""
		return
	}
	now := time.Now()
	if d.cfg.Correct && now.Before(g.calm) {
		d.soon(w.uid(), g.calm)
		return
	}
	var text []string
	for _, x := range diffs {
		text = append(text, fmt.Sprintf("%s is %s, should be %s (%s)", x.File, x.Found, x.Want, x.Field))
	}
	message := fmt.Sprintf("Group %s: %s", want.Path, strings.Join(text, ", "))
	if g.doubt != w.told {
		// It may be a resize that has begun since the pod was heard of. Then there is another version of it at the next
		// look.
		g.doubt = w.told
		d.soon(w.uid(), now)
		return
	}
	if d.cfg.Correct {
		g.doubt = 0
		if now.Sub(g.calm) > sweepEach {
			g.pause = 0
		}
		g.pause = min(max(2*g.pause, settle), maxCalm)
		g.calm = now.Add(g.pause)
		if err := d.cfg.Tree.Correct(want); err != nil {
			message += "; it cannot be corrected: " + err.Error()
		} else {
			message += "; corrected"
		}
	} else if message == g.told {
		return
	}
	g.told = message
	if w.pod == nil {
		d.cfg.Events.Node(corev1.EventTypeWarning, reason, "%s", message)
	} else {
		d.cfg.Events.Event(w.pod, corev1.EventTypeWarning, reason, "%s", message)
	}
	d.logger(w).Warn("a group has not what it should have", "difference", message)
}

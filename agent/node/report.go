package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// together is how long a change waits for others of the same cause.
	together = 20 * time.Millisecond
	// watchRuntime is how often the runtime is asked how it is, and soon is that while it is not well: the CRI has no
	// event for it.
	watchRuntime = 10 * time.Second
	soon         = time.Second
	// Some changes after another are written at once, and more of them so far apart: what flaps is not to keep a server
	// busy.
	apart = 2 * time.Second
	burst = 5 * apart
)

// reports are what the writing of the Node goes by. It is for one goroutine.
type reports struct {
	pause   pause
	trouble trouble
	silent  bool // the runtime does not say how it is

	uid     types.UID // of the Node that was written; "": none was
	due     time.Time // when it is written though nothing has changed
	retry   time.Time // not before
	spent   time.Time // when all writes so far would have been due, had they been apart
	refused string    // labels and annotations that the API server does not take
	told    told
}

func newReports(log *slog.Logger) reports {
	return reports{
		pause:   pause{least: 100 * time.Millisecond, most: 10 * time.Second},
		trouble: trouble{log: log, what: "write the Node"},
	}
}

// report writes the Node until ctx ends.
func (n *Node) report(ctx context.Context) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-n.wake:
			if !sleep(ctx, together, nil) {
				return
			}
		}
		if wait := time.Until(n.reports.retry); wait > 0 {
			next.Reset(wait)
			continue
		}
		wait := n.step(ctx)
		if again := time.Until(n.reports.retry); again > 0 {
			wait = again
		}
		next.Reset(wait)
	}
}

// step looks at the facts once and writes what of the Node is not so; the next look is due after what it returns.
func (n *Node) step(ctx context.Context) time.Duration {
	r := &n.reports
	began := time.Now()
	due := !began.Before(r.due)
	images := n.images.Swap(false) || due
	facts, failing := n.gather.facts(ctx, images)
	if failing != nil && images {
		n.images.Store(true)
	}
	n.tellRuntime(failing)
	if !n.csiMade.Load() {
		facts.NotReady = append(facts.NotReady, "CSINode is not yet initialized")
	}
	next := watchRuntime
	if failing != nil || unwell(&facts) {
		next = soon
	}
	before, known := n.store.get()
	switch {
	case !known, before == nil && !n.cfg.Register:
		return next
	case before == nil:
		n.attempted(n.register(ctx, &facts))
	default:
		wait, err := n.update(ctx, &facts, before, due)
		n.attempted(err)
		if wait > 0 {
			return min(next, wait)
		}
	}
	return min(next, max(0, time.Until(r.due)))
}

// unwell says whether the runtime is about to become another.
func unwell(f *Facts) bool {
	for _, c := range f.Runtime.Status.GetStatus().GetConditions() {
		if !c.GetStatus() {
			return true
		}
	}
	return f.Runtime.Down != ""
}

// attempted keeps when the server may be asked again.
func (n *Node) attempted(err error) {
	r := &n.reports
	if err == nil {
		r.trouble.done()
		r.pause.reset()
		return
	}
	if errors.Is(err, context.Canceled) {
		return
	}
	r.trouble.failed(err)
	r.retry = time.Now().Add(r.pause.after(err))
}

// register makes the Node, complete, in one request.
func (n *Node) register(ctx context.Context, f *Facts) error {
	ctx, cancel := context.WithTimeout(ctx, askServer)
	defer cancel()
	want := Build(f, nil, true, time.Now())
	n.reports.told.first(n.cfg.Events, nil, want)
	var answer corev1.Node
	if err := n.cfg.Client.Create(ctx, nodes, want, &answer); err != nil {
		if apierrors.IsAlreadyExists(err) {
			n.store.again() // somebody has made it meanwhile
		}
		return fmt.Errorf("register Node: %w", err)
	}
	if err := n.wrote(&answer); err != nil {
		return fmt.Errorf("register Node: %w", err)
	}
	n.log.Info("node is registered", "node", answer.Name, "uid", answer.UID)
	return nil
}

// update writes what of the Node is not as the facts are. Wait is for how long it must not be written, where it is to.
func (n *Node) update(ctx context.Context, f *Facts, before *corev1.Node, due bool) (wait time.Duration, err error) {
	r := &n.reports
	firstTime := r.uid != before.UID
	if firstTime {
		n.tellMachine(f, before)
	}
	after := Build(f, before, firstTime, time.Now())
	r.told.first(n.cfg.Events, before, after)
	r.told.changes(n.cfg.Events, before, after)
	d, err := compare(before, after)
	if err != nil {
		return 0, err
	}
	if d.metadata != nil && d.key() == r.refused && !due {
		d.metadata = nil
	}
	if !d.changed() && !due && !firstTime {
		n.reported(before)
		return 0, nil
	}
	if left := time.Until(r.spent); left > 0 && !due {
		return left, nil
	}
	answer, err := n.send(ctx, before, &d)
	if apierrors.IsNotFound(err) {
		n.store.gone(before.UID)
	}
	if err == nil {
		err = n.wrote(answer)
	}
	if err != nil {
		return 0, fmt.Errorf("write Node: %w", err)
	}
	return 0, nil
}

// send makes the patch one request. Labels and annotations that the server refuses, which a driver may have asked for,
// are not to keep it from knowing how the node is.
func (n *Node) send(ctx context.Context, before *corev1.Node, d *diff) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, askServer)
	defer cancel()
	for {
		patch, err := json.Marshal(d.patch())
		if err != nil {
			return nil, err
		}
		var answer corev1.Node
		err = n.cfg.Client.Patch(
			ctx, nodes, types.NamespacedName{Name: before.Name}, types.StrategicMergePatchType, patch, &answer, "status")
		if d.metadata == nil || !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			return &answer, err
		}
		n.log.Warn("API server does not take labels or annotations of the Node", "error", err)
		n.reports.refused, d.metadata = d.key(), nil
	}
}

// errOther is of a server that answers with something that it was not asked for.
var errOther = errors.New("the answer is another object")

// wrote keeps an answer.
func (n *Node) wrote(answer *corev1.Node) error {
	if answer.Name != n.cfg.Identity.Name || answer.UID == "" {
		return fmt.Errorf("%w: Node %q", errOther, answer.Name)
	}
	r := &n.reports
	now := time.Now()
	if least := now.Add(-burst); r.spent.Before(least) {
		r.spent = least
	}
	r.uid, r.spent, r.due = answer.UID, r.spent.Add(apart), now.Add(jitter(n.cfg.ReportEvery))
	n.store.set(answer, false)
	n.reported(answer)
	return nil
}

// reported tells what the API server knows.
func (n *Node) reported(is *corev1.Node) {
	if n.cfg.Written != nil {
		n.cfg.Written(is)
	}
}

// tellMachine tells of what is strange about a Node that was there before: with the same name it is taken over, as by
// kubelet, since a machine that was set up again is the usual reason.
func (n *Node) tellMachine(f *Facts, before *corev1.Node) {
	was := before.Status.NodeInfo.MachineID
	if n.reports.uid == "" && was != "" && f.Machine.ID != "" && was != f.Machine.ID {
		n.log.Warn("the Node of this name was another machine's, and is this one's now", "machine-id", f.Machine.ID, "before", was)
	}
}

// tellRuntime tells once that the runtime does not answer, and once that it does.
func (n *Node) tellRuntime(failing error) {
	r := &n.reports
	switch {
	case failing != nil && !r.silent:
		n.log.Warn("runtime does not say how it is", "error", failing)
	case failing == nil && r.silent:
		n.log.Info("runtime says how it is again")
	}
	r.silent = failing != nil
}

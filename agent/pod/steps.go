package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/environment"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/record"
)

// reasoned is an error with the reason that the API has for it.
type reasoned struct {
	reason string
	err    error
}

func (e *reasoned) Error() string { return e.err.Error() }
func (e *reasoned) Unwrap() error { return e.err }

// acts are what does the steps of a worker. They take what they need of it before they run.
type acts struct{ worker *worker }

// of are what does each kind of steps.
func (a acts) of(k plan.Kind) func(plan.Step) act {
	return map[plan.Kind]func(plan.Step) act{
		plan.Prepare: a.prepare, plan.Renew: a.bringUpToDate, plan.Image: a.image, plan.Start: a.start, plan.Resize: a.resize,
		plan.Kill: a.kill, plan.Remove: a.remove, plan.Forget: a.forget, plan.Finish: a.finish, plan.Teardown: a.teardown,
	}[k]
}

// fail keeps what a step has failed with, and tells.
func (w *worker) fail(s plan.Step, err error) {
	if errors.Is(err, context.Canceled) {
		w.log.Debug("step is cut off", s.LogAttrs()...) // by an order, or by the end of the agent
		return
	}
	key := s.Key()
	f := plan.Failure{Message: err.Error(), Err: err, At: time.Now(), Count: w.tries.failed[key].Count + 1}
	d := w.view().Delays
	f.Until = f.At.Add(d.Retry(f.Count))
	if r, ok := errors.AsType[*reasoned](err); ok {
		f.Reason = r.reason
	}
	if p, ok := errors.AsType[*PrepareError](err); ok {
		f.Reason = p.Reason
	}
	if s.Kind == plan.Image {
		f.Until = f.At.Add(d.Pull(f.Count))
	}
	w.tries.failed[key] = f
	w.log.Warn("step failed", "step", string(s.Kind), "container", s.Container, "error", err, "again", f.Until.Sub(f.At))
	switch s.Kind {
	case plan.Prepare, plan.Renew:
		w.place.renew = w.place.renew || s.Kind == plan.Renew
		if _, awaited := errors.AsType[awaitedError](err); !awaited || f.Count > longAwaited {
			w.tellPrepare(err)
		}
	case plan.Resize:
		w.node.event(w.pod, corev1.EventTypeWarning, "ResizeError", "%v", err)
	case plan.Image:
		// What it was has been told already, as kubelet tells it.
		w.node.containerEvent(w.pod, s.Container, corev1.EventTypeWarning, "Failed", "Error: %s", f.Reason)
	case plan.Start:
		w.node.containerEvent(w.pod, s.Container, corev1.EventTypeWarning, "Failed", "Error: %s: %v",
			cmp.Or(f.Reason, plan.ReasonRun), err)
	case plan.Kill, plan.Finish, plan.Teardown:
		w.node.event(w.pod, corev1.EventTypeWarning, "FailedKillPod", "error killing pod: %v", err)
	}
}

// attachError is of a volume that could not be attached to the node.
type attachError interface {
	error
	FailedAttach()
}

// awaitedError is of what somebody else is at, such as attaching a volume. It is told when that takes long: kubelet
// tells after two minutes.
type awaitedError interface {
	error
	Awaits()
}

// longAwaited is how many tries have come to nothing by then.
const longAwaited = 7

func (w *worker) tellPrepare(err error) {
	var part *environment.Error
	if !errors.As(err, &part) {
		return
	}
	switch part.Part {
	case environment.PartVolumes:
		reason := "FailedMount"
		if _, attaching := errors.AsType[attachError](part.Err); attaching {
			reason = "FailedAttachVolume"
		}
		w.node.event(w.pod, corev1.EventTypeWarning, reason, "%v", part.Err)
	case environment.PartSandbox:
		w.node.event(w.pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: %v", part.Err)
	default:
		if p, ok := errors.AsType[*PrepareError](part.Err); ok {
			w.node.event(w.pod, corev1.EventTypeWarning, p.Reason, "%s%v", p.Event, p.Err)
			return
		}
		w.node.event(w.pod, corev1.EventTypeWarning, "FailedCreatePodContainer", "unable to ensure pod container exists: %v",
			part.Err)
	}
}

// environment is the pod's as far as the worker knows it.
func (a acts) environment() *environment.Environment {
	return a.worker.node.environments.Of(a.worker.pod, a.worker.observer.known)
}

func (a acts) prepare(s plan.Step) act {
	w := a.worker
	w.place.renew = false
	env, want := a.environment(), environment.Wanted{Attempt: s.Attempt, Before: s.ID}
	if now := w.observer.seen.Sandbox(); now != nil && s.ID == "" {
		want.ID = now.GetId()
	}
	return func(ctx context.Context) (func(), error) {
		if err := w.node.starting.enter(ctx, true); err != nil {
			return nil, err
		}
		defer w.node.starting.leave()
		err := w.node.withRoom(ctx, func() error {
			if id := env.Sandbox(); id != "" {
				want.ID = id // the try before this one has made it
			}
			return env.Make(ctx, want)
		})
		return func() {
			w.observer.add(env.Sandbox())
			if env.Sandbox() == "" {
				w.observer.list() // it may be there nevertheless
			}
			w.place.env = nil
			if err == nil {
				w.place.env = env
			}
		}, err
	}
}

// kill ends a container: its preStop hook, then the stop signal, all within the grace it has.
func (a acts) kill(s plan.Step) act {
	w := a.worker
	c, pod, ips := spec.FindContainer(w.pod, s.Container), w.pod, w.podIPs()
	hook := c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && !w.tries.hooked[s.ID] && !s.Force
	w.node.containerEvent(pod, s.Container, corev1.EventTypeNormal, "Killing", "%s", s.Why)
	return func(ctx context.Context) (func(), error) {
		if !hook {
			return nil, w.node.stopContainer(ctx, pod.UID, s.ID, stopTimeout(s))
		}
		if ctx.Err() != nil {
			return nil, ctx.Err() // hurried before it began: the next step runs the hook
		}
		// What is left of the grace may have passed while no agent ran, or for containers before this one. The hook is
		// run all the same.
		hookCtx, cancel := context.WithDeadline(ctx, latest(s.Deadline, time.Now().Add(minStop*time.Second)))
		err := runHook(hookCtx, w.node.cfg.Runtime, c.Lifecycle.PreStop, target{s.ID, c, ips})
		cancel()
		if grpcstatus.Code(err) == codes.Unavailable && time.Now().Before(s.Deadline) {
			// it could not be asked for, and is again as long as there is time
			return nil, fmt.Errorf("run preStop hook: %w", err)
		}
		begun := func() { w.tries.hooked[s.ID] = true }
		if ctx.Err() != nil {
			// by a more urgent order, whose step stops the container, or by the end of the agent
			return begun, ctx.Err()
		}
		if err != nil {
			w.node.containerEvent(pod, s.Container, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: %v", err)
		}
		return begun, w.node.stopContainer(ctx, pod.UID, s.ID, stopTimeout(s))
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// minStop is what a container has to answer its stop signal when those before it have taken all of the grace, in
// seconds.
const minStop = 2

// stopTimeout is the rest of the grace in whole seconds, as the CRI wants it. Who gives no grace means none.
func stopTimeout(s plan.Step) int64 {
	if s.Force {
		return 0
	}
	return max(int64(time.Until(s.Deadline).Round(time.Second)/time.Second), minStop)
}

func (n *node) stopContainer(ctx context.Context, uid types.UID, id string, seconds int64) error {
	if err := n.remover().StopContainer(ctx, uid, id, seconds); err != nil {
		return fmt.Errorf("stop container: %w", err)
	}
	return nil
}

// remove removes a dead container with its log and its last words.
func (a acts) remove(s plan.Step) act {
	w := a.worker
	pod := w.pod
	return func(ctx context.Context) (func(), error) {
		if err := w.node.remover().RemoveContainer(ctx, pod.UID, s.ID); err != nil {
			return nil, fmt.Errorf("remove container: %w", err)
		}
		// With a rotated log's names in the directory of the container there are few.
		files, err := logsOf(w.node.cfg.LogDir, pod, s.Container, s.Attempt)
		files = append(files, spec.MessageFile(w.node.cfg.RootDir, string(pod.UID), s.Container, s.Attempt))
		for _, f := range files {
			if rmErr := os.Remove(f); rmErr != nil && !errors.Is(rmErr, os.ErrNotExist) {
				err = errors.Join(err, rmErr)
			}
		}
		return nil, err
	}
}

// forget removes a dead sandbox that holds no containers any more.
func (a acts) forget(s plan.Step) act {
	env := a.environment()
	return func(ctx context.Context) (func(), error) { return nil, env.RemoveSandbox(ctx, s.ID) }
}

// finish gives back what a pod does not need that is over.
func (a acts) finish(plan.Step) act {
	w := a.worker
	env, root, uid := a.environment(), w.node.cfg.RootDir, w.pod.UID
	said, more, end := w.messages(), w.size.added, (*termination)(nil)
	if w.fate.end != nil && w.fate.final == nil {
		end = new(w.termination())
	}
	// The record that there is more of this pod, and what the next agent will want to know of it.
	keep := func() error {
		if err := environment.KeepMessages(said); err != nil {
			return err
		}
		if !more.empty() {
			if err := record.Write(addedFile(root, uid), more); err != nil {
				return fmt.Errorf("keep what was added to the pod: %w", err)
			}
		}
		if end == nil {
			return nil
		}
		return writeTermination(root, uid, *end)
	}
	return func(ctx context.Context) (func(), error) {
		if err := w.node.stopping.enter(ctx, false); err != nil {
			return nil, err
		}
		defer w.node.stopping.leave()
		err := env.Release(ctx, keep)
		if unrecorded := (*environment.Unrecorded)(nil); errors.As(err, &unrecorded) {
			w.told.tellEnd() // whoever waits for the room that it had need not wait for more
		}
		if err != nil {
			return nil, err
		}
		return a.finishes, nil
	}
}

func (a acts) finishes() {
	w := a.worker
	w.place.finished, w.place.env = true, nil
	w.told.over.Store(true)
	defer w.told.tellEnd()
	if w.fate.end != nil && w.fate.end.Keep {
		w.told.evictionDone.Store(&doneEviction{Eviction: w.fate.evicted, at: time.Now()})
		w.node.registry.evictionDone(w)
	}
	w.node.askAgain()
}

// teardown removes everything of the pod.
func (a acts) teardown(plan.Step) act {
	w := a.worker
	env := a.environment()
	return func(ctx context.Context) (func(), error) {
		if err := w.node.stopping.enter(ctx, false); err != nil {
			return nil, err
		}
		defer w.node.stopping.leave()
		if err := env.Remove(ctx); err != nil {
			return nil, err
		}
		return func() { w.place.torn, w.place.env = true, nil }, nil
	}
}

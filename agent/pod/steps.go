package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// act is what does the step.
func (a acts) act(s plan.Step) act {
	switch s.Kind {
	case plan.Prepare:
		return a.prepare(s)
	case plan.Renew:
		return a.bringUpToDate()
	case plan.Image:
		return a.image(s)
	case plan.Start:
		return a.start(s)
	case plan.Resize:
		return a.resize()
	case plan.Kill:
		return a.kill(s)
	case plan.Remove:
		return a.remove(s)
	case plan.Forget:
		return a.forget(s)
	case plan.Finish:
		return a.finish()
	default:
		return a.teardown()
	}
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
		w.tellPrepare(err)
	case plan.Resize:
		w.node.event(w.pod, corev1.EventTypeWarning, "ResizeError", "%v", err)
	case plan.Image:
		// What it was has been told already, as kubelet tells it.
		w.node.containerEvent(w.pod, s.Container, corev1.EventTypeWarning, "Failed", "Error: %s", f.Reason)
	case plan.Start:
		w.node.containerEvent(w.pod, s.Container, corev1.EventTypeWarning, "Failed", "Error: %s: %v", cmp.Or(f.Reason, plan.ReasonRun), err)
	case plan.Kill, plan.Finish, plan.Teardown:
		w.node.event(w.pod, corev1.EventTypeWarning, "FailedKillPod", "error killing pod: %v", err)
	}
}

func (w *worker) tellPrepare(err error) {
	var hook *hookError
	if !errors.As(err, &hook) {
		return
	}
	switch hook.hook {
	case "volumes":
		w.node.event(w.pod, corev1.EventTypeWarning, "FailedMount", "%v", hook.err)
	case "sandbox":
		w.node.event(w.pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: %v", hook.err)
	default:
		if p, ok := errors.AsType[*PrepareError](hook.err); ok {
			w.node.event(w.pod, corev1.EventTypeWarning, p.Reason, "%s%v", p.Event, p.Err)
			return
		}
		w.node.event(w.pod, corev1.EventTypeWarning, "FailedCreatePodContainer", "unable to ensure pod container exists: %v", hook.err)
	}
}

// newSite is the pod's site as far as the worker knows it.
func (a acts) newSite() *site {
	w := a.worker
	return &site{node: w.node, pod: w.pod, known: w.observer.known}
}

func (a acts) prepare(s plan.Step) act {
	w := a.worker
	w.place.renew = false
	place := a.newSite()
	place.attempt, place.old = s.Attempt, s.ID
	if now := w.observer.seen.Sandbox(); now != nil && s.ID == "" {
		place.have, place.sandbox = true, now.GetId()
	}
	return func(ctx context.Context) (func(), error) {
		if err := w.node.starting.enter(ctx, true); err != nil {
			return nil, err
		}
		defer w.node.starting.leave()
		err := place.make(ctx)
		return func() {
			w.observer.add(place.sandbox)
			if place.sandbox == "" {
				w.observer.list() // it may be there nevertheless
			}
			w.place.site = nil
			if err == nil {
				w.place.site = place
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
			return nil, w.node.stopContainer(ctx, s.ID, stopTimeout(s))
		}
		if ctx.Err() != nil {
			return nil, ctx.Err() // hurried before it began: the next step runs the hook
		}
		// What is left of the grace may have passed while no agent ran, or for containers before this one. The hook is run all the same.
		hookCtx, cancel := context.WithDeadline(ctx, latest(s.Deadline, time.Now().Add(minStop*time.Second)))
		err := runHook(hookCtx, w.node.cfg.Runtime, c.Lifecycle.PreStop, target{s.ID, c, ips})
		cancel()
		if grpcstatus.Code(err) == codes.Unavailable && time.Now().Before(s.Deadline) {
			return nil, fmt.Errorf("run preStop hook: %w", err) // it could not be asked for, and is again as long as there is time
		}
		begun := func() { w.tries.hooked[s.ID] = true }
		if ctx.Err() != nil {
			return begun, ctx.Err() // by an order in more of a hurry, whose step stops the container, or by the end of the agent
		}
		if err != nil {
			w.node.containerEvent(pod, s.Container, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: %v", err)
		}
		return begun, w.node.stopContainer(ctx, s.ID, stopTimeout(s))
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

const (
	// minStop is what a container has to answer its stop signal when those before it have taken all of the grace.
	minStop = 2
	// stopSlack is how long the runtime may take beyond the time it was given, before it is asked again.
	stopSlack = 2 * time.Minute
)

// stopTimeout is the rest of the grace in whole seconds, as the CRI wants it. Who gives no grace means none.
func stopTimeout(s plan.Step) int64 {
	if s.Force {
		return 0
	}
	return max(int64(time.Until(s.Deadline).Round(time.Second)/time.Second), minStop)
}

func (n *node) stopContainer(ctx context.Context, id string, seconds int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+stopSlack)
	defer cancel()
	_, err := n.cfg.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
	if err != nil && !isNotFound(err) {
		return fmt.Errorf("stop container: %w", err)
	}
	return nil
}

// remove removes a dead container with its log and its last words.
func (a acts) remove(s plan.Step) act {
	w := a.worker
	pod := w.pod
	return func(ctx context.Context) (func(), error) {
		_, err := w.node.cfg.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: s.ID})
		if err != nil && !isNotFound(err) {
			return nil, fmt.Errorf("remove container: %w", err)
		}
		// With a rotated log's names in the directory of the container there are few.
		log := filepath.Join(spec.LogDirectory(w.node.cfg.LogDir, pod), spec.LogPath(s.Container, s.Attempt))
		files, err := filepath.Glob(log + "*")
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
	place := a.newSite()
	return func(ctx context.Context) (func(), error) {
		if err := place.stopSandbox(ctx, s.ID); err != nil {
			return nil, fmt.Errorf("stop sandbox: %w", err)
		}
		_, err := a.worker.node.cfg.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.ID})
		if err != nil && !isNotFound(err) {
			return nil, fmt.Errorf("remove sandbox: %w", err)
		}
		return nil, nil
	}
}

// finish gives back what a pod does not need that is over: its network, its group and its volumes. Its directory stays, for the
// last words of its containers and for the record that it is over, which it is at no time without.
func (a acts) finish() act {
	w := a.worker
	place, said, more, end := a.newSite(), w.messages(), w.size.added, (*mark)(nil)
	if w.fate.end != nil {
		end = new(w.mark())
	}
	return func(ctx context.Context) (func(), error) {
		if err := w.node.stopping.enter(ctx, false); err != nil {
			return nil, err
		}
		defer w.node.stopping.leave()
		for _, id := range place.known {
			if err := place.stopSandbox(ctx, id); err != nil {
				return nil, fmt.Errorf("stop sandbox: %w", err)
			}
		}
		if err := place.removeCgroup(ctx); err != nil {
			return nil, err
		}
		if err := place.releaseResources(ctx); err != nil {
			return nil, err
		}
		// The record that there is more of this pod, and what the next agent will want to know of it. A pod may be over before it had
		// a directory.
		if err := place.makeDirectory(ctx); err != nil {
			return nil, err
		}
		if err := keepMessages(said); err != nil {
			return nil, err
		}
		if !more.empty() {
			if err := record.Write(addedFile(place.node.cfg.RootDir, place.pod.UID), more); err != nil {
				return nil, fmt.Errorf("keep what was added to the pod: %w", err)
			}
		}
		if end != nil {
			if err := writeMark(place.node.cfg.RootDir, place.pod.UID, *end); err != nil {
				return nil, err
			}
		}
		if err := place.node.cfg.Volumes.Release(ctx, place.pod.UID); err != nil {
			return nil, err
		}
		return a.finishes, nil
	}
}

func (a acts) finishes() {
	w := a.worker
	w.place.finished, w.place.site = true, nil
	w.told.over.Store(true)
	if w.fate.end != nil && w.fate.end.Keep {
		w.told.lapsed.Store(&lapsed{Eviction: w.fate.evicted, at: time.Now()})
	}
	w.node.askAgain()
}

// teardown removes everything of the pod.
func (a acts) teardown() act {
	w := a.worker
	place := a.newSite()
	return func(ctx context.Context) (func(), error) {
		if err := w.node.stopping.enter(ctx, false); err != nil {
			return nil, err
		}
		defer w.node.stopping.leave()
		if err := place.unmake(ctx); err != nil {
			return nil, err
		}
		return func() { w.place.torn, w.place.site = true, nil }, nil
	}
}

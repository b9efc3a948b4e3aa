package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/record"
)

// The reasons of a container that waits because something has failed.
const (
	reasonErrImagePull      = "ErrImagePull"
	reasonImagePullBackOff  = "ImagePullBackOff"
	reasonErrImageNeverPull = "ErrImageNeverPull"
	reasonInvalidImageName  = "InvalidImageName"
	reasonImageInspect      = "ImageInspectError"
	reasonConfig            = "CreateContainerConfigError"
	reasonCreate            = "CreateContainerError"
	reasonRun               = "RunContainerError"
	reasonPostStart         = "PostStartHookError"
)

// reasoned is an error with the reason that the API has for it.
type reasoned struct {
	reason string
	err    error
}

func (e *reasoned) Error() string { return e.err.Error() }
func (e *reasoned) Unwrap() error { return e.err }

func kindOf(key string) kind {
	k, _, _ := strings.Cut(key, "/")
	return kind(k)
}

// act is what does the step.
func (w *worker) act(s step) act {
	switch s.kind {
	case stepPrepare:
		return w.prepare(s)
	case stepRenew:
		return w.bringUpToDate()
	case stepImage:
		return w.image(s)
	case stepStart:
		return w.start(s)
	case stepResize:
		return w.resize()
	case stepKill:
		return w.kill(s)
	case stepRemove:
		return w.remove(s)
	case stepForget:
		return w.forget(s)
	case stepFinish:
		return w.finish()
	default:
		return w.teardown()
	}
}

// fail keeps what a step has failed with, and tells.
func (w *worker) fail(s step, err error) {
	if errors.Is(err, context.Canceled) {
		return // it was cut off by an order, or by the end of the agent
	}
	key := s.key()
	f := failure{message: err.Error(), err: err, at: time.Now(), count: w.failed[key].count + 1}
	d := w.view().delays
	f.until = f.at.Add(d.retry(f.count))
	if r, ok := errors.AsType[*reasoned](err); ok {
		f.reason = r.reason
	}
	if s.kind == stepImage {
		f.until = f.at.Add(d.pull(f.count))
	}
	w.failed[key] = f
	w.log.Warn("step failed", "step", string(s.kind), "container", s.container, "error", err, "again", f.until.Sub(f.at))
	switch s.kind {
	case stepPrepare, stepRenew:
		w.renew = w.renew || s.kind == stepRenew
		w.tellPrepare(err)
	case stepResize:
		w.event(w.pod, corev1.EventTypeWarning, "ResizeError", "%v", err)
	case stepImage:
		// What it was has been told already, as kubelet tells it.
		w.containerEvent(w.pod, s.container, corev1.EventTypeWarning, "Failed", "Error: %s", f.reason)
	case stepStart:
		w.containerEvent(w.pod, s.container, corev1.EventTypeWarning, "Failed", "Error: %s: %v", cmp.Or(f.reason, reasonRun), err)
	case stepKill, stepFinish, stepTeardown:
		w.event(w.pod, corev1.EventTypeWarning, "FailedKillPod", "error killing pod: %v", err)
	}
}

func (w *worker) tellPrepare(err error) {
	var hook *hookError
	if !errors.As(err, &hook) {
		return
	}
	switch hook.hook {
	case "volumes":
		w.event(w.pod, corev1.EventTypeWarning, "FailedMount", "%v", hook.err)
	case "sandbox":
		w.event(w.pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: %v", hook.err)
	case hookClaims:
		w.event(w.pod, corev1.EventTypeWarning, reasonClaims, "Failed to prepare dynamic resources: %v", hook.err)
	case "devices":
		w.event(w.pod, corev1.EventTypeWarning, reasonDevices, "%v", hook.err)
	default:
		w.event(w.pod, corev1.EventTypeWarning, "FailedCreatePodContainer", "unable to ensure pod container exists: %v", hook.err)
	}
}

// newSite is the pod's site as far as the worker knows it.
func (w *worker) newSite() *site {
	return &site{node: w.node, pod: w.pod, known: w.observer.known}
}

func (w *worker) prepare(s step) act {
	w.renew = false
	place := w.newSite()
	place.attempt, place.old = s.attempt, s.id
	if now := w.seen.sandbox(); now != nil && s.id == "" {
		place.have, place.sandbox = true, now.GetId()
	}
	return func(ctx context.Context) (func(), error) {
		if err := w.starting.enter(ctx, true); err != nil {
			return nil, err
		}
		defer w.starting.leave()
		err := place.make(ctx)
		return func() {
			w.observer.add(place.sandbox)
			if place.sandbox == "" {
				w.observer.list() // it may be there nevertheless
			}
			w.site = nil
			if err == nil {
				w.site = place
			}
		}, err
	}
}

// kill ends a container: its preStop hook, then the stop signal, all within the grace it has.
func (w *worker) kill(s step) act {
	c, pod, ips := findContainer(w.pod, s.container), w.pod, w.podIPs()
	hook := c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && !w.hooked[s.id] && !s.force
	w.containerEvent(pod, s.container, corev1.EventTypeNormal, "Killing", "%s", s.why)
	return func(ctx context.Context) (func(), error) {
		if !hook {
			return nil, w.stopContainer(ctx, s.id, stopTimeout(s))
		}
		if ctx.Err() != nil {
			return nil, ctx.Err() // hurried before it began: the next step runs the hook
		}
		// What is left of the grace may have passed while no agent ran, or for containers before this one. The hook is run all the same.
		hookCtx, cancel := context.WithDeadline(ctx, latest(s.deadline, time.Now().Add(minStop*time.Second)))
		err := runHook(hookCtx, w.cfg.Runtime, c.Lifecycle.PreStop, target{s.id, c, ips})
		cancel()
		if grpcstatus.Code(err) == codes.Unavailable && time.Now().Before(s.deadline) {
			return nil, fmt.Errorf("run preStop hook: %w", err) // it could not be asked for, and is again as long as there is time
		}
		begun := func() { w.hooked[s.id] = true }
		if ctx.Err() != nil {
			return begun, ctx.Err() // by an order in more of a hurry, whose step stops the container, or by the end of the agent
		}
		if err != nil {
			w.containerEvent(pod, s.container, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: %v", err)
		}
		return begun, w.stopContainer(ctx, s.id, stopTimeout(s))
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
func stopTimeout(s step) int64 {
	if s.force {
		return 0
	}
	return max(int64(time.Until(s.deadline).Round(time.Second)/time.Second), minStop)
}

func (w *worker) stopContainer(ctx context.Context, id string, seconds int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+stopSlack)
	defer cancel()
	_, err := w.cfg.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
	if err != nil && !isNotFound(err) {
		return fmt.Errorf("stop container: %w", err)
	}
	return nil
}

// remove removes a dead container with its log and its last words.
func (w *worker) remove(s step) act {
	pod := w.pod
	return func(ctx context.Context) (func(), error) {
		_, err := w.cfg.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: s.id})
		if err != nil && !isNotFound(err) {
			return nil, fmt.Errorf("remove container: %w", err)
		}
		// With a rotated log's names in the directory of the container there are few.
		log := filepath.Join(spec.LogDirectory(w.cfg.LogDir, pod), spec.LogPath(s.container, s.attempt))
		files, err := filepath.Glob(log + "*")
		files = append(files, spec.MessageFile(w.cfg.RootDir, string(pod.UID), s.container, s.attempt))
		for _, f := range files {
			if rmErr := os.Remove(f); rmErr != nil && !errors.Is(rmErr, os.ErrNotExist) {
				err = errors.Join(err, rmErr)
			}
		}
		return nil, err
	}
}

// forget removes a dead sandbox that holds no containers any more.
func (w *worker) forget(s step) act {
	place := w.newSite()
	return func(ctx context.Context) (func(), error) {
		if err := place.stopSandbox(ctx, s.id); err != nil {
			return nil, fmt.Errorf("stop sandbox: %w", err)
		}
		_, err := w.cfg.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.id})
		if err != nil && !isNotFound(err) {
			return nil, fmt.Errorf("remove sandbox: %w", err)
		}
		return nil, nil
	}
}

// finish gives back what a pod does not need that is over: its network, its group and its volumes. Its directory stays, for the
// last words of its containers and for the record that it is over, which it is at no time without.
func (w *worker) finish() act {
	place, said, more, end := w.newSite(), w.messages(), w.added, (*mark)(nil)
	if w.end != nil {
		end = new(w.mark())
	}
	return func(ctx context.Context) (func(), error) {
		if err := w.stopping.enter(ctx, false); err != nil {
			return nil, err
		}
		defer w.stopping.leave()
		for _, id := range place.known {
			if err := place.stopSandbox(ctx, id); err != nil {
				return nil, fmt.Errorf("stop sandbox: %w", err)
			}
		}
		if err := place.removeCgroup(ctx); err != nil {
			return nil, err
		}
		if err := place.removeClaims(ctx); err != nil {
			return nil, &hookError{hookClaims, err}
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
			if err := record.Write(addedFile(place.cfg.RootDir, place.pod.UID), more); err != nil {
				return nil, fmt.Errorf("keep what was added to the pod: %w", err)
			}
		}
		if end != nil {
			if err := writeMark(place.cfg.RootDir, place.pod.UID, *end); err != nil {
				return nil, err
			}
		}
		if err := place.cfg.Volumes.Release(ctx, place.pod.UID); err != nil {
			return nil, err
		}
		return w.finishes, nil
	}
}

func (w *worker) finishes() {
	w.finished, w.site = true, nil
	w.over.Store(true)
	if w.end != nil && w.end.keep {
		w.lapsed.Store(&lapsed{Eviction: w.evicted, at: time.Now()})
	}
	w.askAgain()
}

// teardown removes everything of the pod.
func (w *worker) teardown() act {
	place := w.newSite()
	return func(ctx context.Context) (func(), error) {
		if err := w.stopping.enter(ctx, false); err != nil {
			return nil, err
		}
		defer w.stopping.leave()
		if err := place.unmake(ctx); err != nil {
			return nil, err
		}
		return func() { w.torn, w.site = true, nil }, nil
	}
}

func findContainer(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == name {
			return asContainer(e)
		}
	}
	return nil
}

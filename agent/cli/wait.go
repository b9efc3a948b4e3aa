package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/desired"
)

var (
	errPatience = errors.New("the time is up")
	errDone     = errors.New("done") // ends the watches
)

// waiting follows a pod from its manifest until it is ready, by what the agent tells of it.
type waiting struct {
	*wanted
	client *client.Client
	out    io.Writer

	said string // of its state, last
	why  string // what has gone wrong, last
}

// seenPod and seenEvent are what the watches have for the one goroutine that looks at them.
type (
	seenPod   struct{ pod *corev1.Pod }
	seenEvent struct{ event *corev1.Event }
)

// wait begins to watch, calls begin, and returns when the pod is ready or is not going to be.
func (l *waiting) wait(ctx context.Context, begin func() error) error {
	since := time.Now().Truncate(time.Second) // as events have it
	g, ctx := errgroup.WithContext(ctx)
	news := make(chan any)
	tell := func(n any) error {
		select {
		case news <- n:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	events := make(chan struct{})
	g.Go(func() error {
		return l.client.WatchEventsFrom(ctx, "", "", func() error { close(events); return nil }, func(t watch.EventType, e *corev1.Event) error {
			if t == watch.Deleted || e.LastTimestamp.Time.Before(since) {
				return nil
			}
			return tell(seenEvent{e})
		})
	})
	g.Go(func() error {
		begun := func() error {
			select {
			case <-events:
				return begin()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return l.client.WatchPodsFrom(ctx, l.key.Namespace, begun, func(t watch.EventType, p *corev1.Pod) error {
			if t == watch.Deleted || keyOf(p) != l.key || p.Annotations[desired.AnnotationHash] != l.hash {
				return nil // the pod that was there before, among others
			}
			return tell(seenPod{p})
		})
	})
	g.Go(func() error {
		for {
			select {
			case n := <-news:
				if err := l.hear(ctx, n); err != nil {
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
	err := g.Wait()
	switch {
	case errors.Is(err, errDone):
		return nil
	case errors.Is(context.Cause(ctx), errPatience), errors.Is(err, context.DeadlineExceeded):
		return errPatience
	}
	return err
}

func (l *waiting) hear(ctx context.Context, n any) error {
	switch n := n.(type) {
	case seenEvent:
		return l.event(ctx, n.event)
	case seenPod:
		return l.pod(n.pod)
	}
	return nil
}

// event shows what happens to the pod, and fails when its manifest is refused.
func (l *waiting) event(ctx context.Context, e *corev1.Event) error {
	if strings.HasPrefix(e.Reason, "Manifest") {
		problems, err := l.client.Problems(ctx)
		if err != nil {
			return err
		}
		if why := l.refusal(problems); why != "" {
			return fmt.Errorf("run pod %s: %s is refused: %s", l.key, l.path, why)
		}
		return nil
	}
	// What is told of the pod that was there before is no news of this one, which has its UID only when nothing but
	// resources change.
	if e.InvolvedObject.UID != l.uid {
		return nil
	}
	if e.Type == corev1.EventTypeWarning {
		l.why = e.Reason + ": " + strings.TrimSpace(e.Message)
	}
	fmt.Fprintf(l.out, "  %s: %s\n", oneLine(e.Reason), oneLine(strings.TrimSpace(e.Message)))
	return nil
}

// pod looks at the state of the pod: it is told when it is another one, and is an error when it is the last.
func (l *waiting) pod(p *corev1.Pod) error {
	l.uid = p.UID
	if r := display(p); r.status != l.said {
		l.said = r.status
		fmt.Fprintf(l.out, "  is %s\n", oneLine(r.status))
	}
	ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	switch {
	case p.Status.Phase == corev1.PodSucceeded:
		fmt.Fprintf(l.out, "Pod %s has ended well; 'berth logs %s' shows what it said.\n", l.key, p.Name)
		return errDone
	case p.Status.Phase == corev1.PodFailed:
		return l.failed(cmp.Or(failure(p), l.why, "it has failed"), "it stays as it is")
	case ready:
		fmt.Fprintf(l.out, "Pod %s is ready%s.\n", l.key, reached(p))
		return errDone
	}
	if why, last := stuck(p); last {
		return l.failed(cmp.Or(why, l.why), "the agent goes on trying")
	}
	return nil
}

func (l *waiting) failed(why, then string) error {
	return fmt.Errorf("run pod %s: %s\n%s as long as %s is there; 'berth describe %s' and 'berth logs %s' say more", l.key, why,
		strings.ToUpper(then[:1])+then[1:], l.path, l.key, l.key)
}

// late says what the pod was waiting for when the time was up.
func (l *waiting) late(patience time.Duration) error {
	why := fmt.Sprintf("it was not ready after %s", patience)
	if l.said == "" {
		why += "; the agent has not begun with it"
	} else {
		why += "; it is " + l.said
	}
	if l.why != "" {
		why += ", and the last that went wrong is " + l.why
	}
	return l.failed(why, "the agent goes on trying")
}

// hopeless are the reasons of containers that wait for nothing that is about to happen: somebody has to do something,
// or the agent has tried and waits before it tries again.
var hopeless = []string{"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CrashLoopBackOff", "CreateContainerConfigError"}

// stuck says why a pod does not go on, and whether there is something that keeps it.
func stuck(p *corev1.Pod) (why string, is bool) {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := s.State.Waiting
		if w == nil || !slices.Contains(hopeless, w.Reason) {
			continue
		}
		why = w.Reason
		if w.Message != "" {
			why += ": " + w.Message
		}
		if t := s.LastTerminationState.Terminated; t != nil {
			why += "; " + ended(s.Name, t)
		}
		return why, true
	}
	return "", false
}

// failure says why a pod has ended.
func failure(p *corev1.Pod) string {
	why := p.Status.Reason
	if p.Status.Message != "" {
		why += ": " + p.Status.Message
	}
	if why != "" {
		return why
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return ended(s.Name, t)
		}
	}
	return ""
}

func ended(container string, t *corev1.ContainerStateTerminated) string {
	out := fmt.Sprintf("container %s ended with exit code %d", container, t.ExitCode)
	if t.Signal != 0 {
		out = fmt.Sprintf("container %s was ended by signal %d", container, t.Signal)
	}
	if t.Reason != "" && t.Reason != "Error" {
		out += " (" + t.Reason + ")"
	}
	if t.Message != "" {
		out += ": " + t.Message
	}
	return out
}

// reached says how a pod is reached.
func reached(p *corev1.Pod) string {
	var out string
	if p.Status.PodIP != "" {
		out = " at " + p.Status.PodIP
	}
	for _, c := range p.Spec.Containers {
		for _, o := range c.Ports {
			if o.HostPort != 0 && o.HostPort != o.ContainerPort {
				out += fmt.Sprintf(", port %d of the node leads to its port %d", o.HostPort, o.ContainerPort)
			}
		}
	}
	return out
}

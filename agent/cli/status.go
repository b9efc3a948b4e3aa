package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/internal/commandline"
)

// row is what a list shows of a pod.
type row struct {
	ready, total int
	status       string
	restarts     int32
	lastRestart  time.Time
}

// display boils a pod down to a row with the words that kubectl has for its state: the most telling reason of its
// containers, not its phase.
func display(p *corev1.Pod) row {
	r := row{status: string(p.Status.Phase), total: len(p.Spec.Containers)}
	if p.Status.Reason != "" {
		r.status = p.Status.Reason
	}
	sidecars := map[string]bool{}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars[c.Name] = true
			r.total++
		}
	}
	initializing := r.init(p, sidecars)
	if !initializing {
		r.main(p)
	}
	if p.Status.Reason == pod.ReasonNotAnswering { // whatever its containers were last known to do
		r.status = p.Status.Reason
	}
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	if p.DeletionTimestamp != nil && !ended {
		r.status = "Terminating"
	}
	if r.status == "" {
		r.status = string(corev1.PodPending)
	}
	return r
}

// init looks at the init containers in order and says whether one of them is what the pod is at.
func (r *row) init(p *corev1.Pod, sidecars map[string]bool) bool {
	var restarts int32
	var last time.Time
	for i, s := range p.Status.InitContainerStatuses {
		restarts += s.RestartCount
		last = later(last, s)
		if sidecars[s.Name] {
			r.restarts += s.RestartCount
			r.lastRestart = later(r.lastRestart, s)
			if s.Ready {
				r.ready++
			}
			if s.Started != nil && *s.Started {
				continue
			}
		}
		switch t, w := s.State.Terminated, s.State.Waiting; {
		case t != nil && t.ExitCode == 0:
			continue
		case t != nil:
			r.status = "Init:" + ending(t)
		case p.Status.Reason != "" && (w == nil || notBegun(w)):
			r.status = p.Status.Reason // the pod is held or was refused as a whole
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			r.status = "Init:" + w.Reason
		default:
			r.status = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		if initialized(p) {
			// A sidecar that failed after everything had started, say: the containers tell more.
			return false
		}
		r.restarts, r.lastRestart = restarts, last
		return true
	}
	return false
}

func initialized(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodInitialized {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// notBegun says of a container that waits that nothing is wrong with it.
func notBegun(w *corev1.ContainerStateWaiting) bool {
	return w.Reason == "" || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing"
}

// main looks at the containers; the first one with something to tell gives its reason.
func (r *row) main(p *corev1.Pod) {
	running := false
	status := r.status
	for _, s := range slices.Backward(p.Status.ContainerStatuses) {
		r.restarts += s.RestartCount
		r.lastRestart = later(r.lastRestart, s)
		switch {
		case s.State.Waiting != nil && notBegun(s.State.Waiting) && p.Status.Reason != "":
			// What the pod as a whole waits for, or was refused for, tells more.
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			status = s.State.Waiting.Reason
		case s.State.Terminated != nil:
			status = ending(s.State.Terminated)
		case s.State.Running != nil && s.Ready:
			running = true
			r.ready++
		}
	}
	// One container has ended well and another goes on: that is no completed pod.
	if status == "Completed" && running {
		status = "NotReady"
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				status = "Running"
			}
		}
	}
	r.status = status
}

func ending(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}

func later(t time.Time, s corev1.ContainerStatus) time.Time {
	if l := s.LastTerminationState.Terminated; l != nil && l.FinishedAt.After(t) {
		return l.FinishedAt.Time
	}
	return t
}

func (r row) restartText(now time.Time) string {
	if r.restarts == 0 || r.lastRestart.IsZero() {
		return fmt.Sprint(r.restarts)
	}
	return fmt.Sprintf("%d (%s ago)", r.restarts, duration.HumanDuration(now.Sub(r.lastRestart)))
}

// age is how long ago t was, in kubectl's words.
func age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// oneLine keeps a text from being more than one cell of one line, as wide as it is counted: what is not seen becomes
// visible before columns are aligned, not after.
func oneLine(s string) string {
	return commandline.VisibleText(strings.NewReplacer("\n", "^J", "\t", "^I").Replace(s))
}

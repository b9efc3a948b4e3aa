package system

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPodHistory: pods are created, changed and deleted in random order while agent and API server are killed; at the
// end API and kernel agree, nothing was started again without a reason, and no status ever went backwards.
func TestPodHistory(t *testing.T) {
	t.Parallel()
	pods, agentKills, planeKills := 40, 6, 2
	if long() {
		pods, agentKills, planeKills = 500, 100, 20
	}
	m := joined(t, "--max-pods=200")
	m.nodeReady()
	r := chances(t)
	watch := m.watchHistory()
	alive := map[string]bool{}
	every := max(1, pods/(agentKills+planeKills))
	const most = 25
	for i := range pods {
		name := fmt.Sprintf("p%d", i)
		m.create(m.bound(name, func(p *corev1.Pod) {
			if r.IntN(4) == 0 {
				p.Spec.RestartPolicy = corev1.RestartPolicyNever
				p.Spec.Containers[0].Command = []string{"sh", "-c", fmt.Sprintf("exit %d", r.IntN(2))}
			}
		}))
		alive[name] = true
		for n := range alive {
			switch {
			case len(alive) > most || r.IntN(8) == 0:
				m.delete(n, nil)
				delete(alive, n)
			case r.IntN(8) == 0:
				patch := fmt.Sprintf(`{"metadata":{"labels":{"turn":"%d"}}}`, i)
				_, err := m.plane.Client.CoreV1().Pods("default").Patch(t.Context(), n, "application/merge-patch+json", []byte(patch),
					metav1.PatchOptions{})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if i%every != every-1 {
			continue
		}
		if (i/every)%4 == 3 {
			m.plane.Kill()
			m.plane.Again(t)
		} else {
			m.kill()
			m.start()
		}
	}
	for n := range alive {
		m.follow(n, "running or over", func(p *corev1.Pod) bool {
			return p != nil && (isReady(p) || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed)
		})
	}
	m.eventually("the API to have the pods that are wanted, and no others", func() error {
		list, err := m.plane.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != len(alive) {
			return fmt.Errorf("%d pods, want %d", len(list.Items), len(alive))
		}
		return nil
	})
	for n := range alive {
		m.delete(n, new(int64(0)))
	}
	m.requireNoPods()
	watch()
}

// watchHistory follows the statuses of all pods until what it returns is called, which says what went backwards.
func (m *member) watchHistory() (stop func()) {
	ctx, cancel := context.WithCancel(m.t.Context())
	done := make(chan []string)
	go func() {
		h := history{last: map[string]*corev1.Pod{}}
		for ctx.Err() == nil {
			h.follow(ctx, m)
		}
		done <- h.wrong
	}()
	return func() {
		m.t.Helper()
		cancel()
		if wrong := <-done; len(wrong) > 0 {
			m.t.Errorf("statuses went backwards:\n%s", strings.Join(wrong, "\n"))
		}
	}
}

// history is what was seen of pods.
type history struct {
	version string
	last    map[string]*corev1.Pod // by UID
	wrong   []string
}

func (h *history) follow(ctx context.Context, m *member) {
	w, err := m.plane.Client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{
		ResourceVersion: h.version, AllowWatchBookmarks: true,
	})
	if err != nil {
		select { // it is away
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		p, ok := e.Object.(*corev1.Pod)
		if !ok {
			h.version = "" // it does not remember so far back
			return
		}
		h.version = p.ResourceVersion
		if e.Type == "ADDED" || e.Type == "MODIFIED" {
			h.see(p)
		}
	}
}

var order = map[corev1.PodPhase]int{
	corev1.PodPending: 0, corev1.PodRunning: 1, corev1.PodSucceeded: 2, corev1.PodFailed: 2,
}

func (h *history) see(p *corev1.Pod) {
	was := h.last[string(p.UID)]
	h.last[string(p.UID)] = p
	if was == nil {
		return
	}
	bad := func(format string, args ...any) {
		h.wrong = append(h.wrong, p.Name+" at "+p.ResourceVersion+": "+fmt.Sprintf(format, args...))
	}
	if order[p.Status.Phase] < order[was.Status.Phase] || order[was.Status.Phase] == 2 && p.Status.Phase != was.Status.Phase {
		bad("phase %s after %s", p.Status.Phase, was.Status.Phase)
	}
	if was.Status.StartTime != nil && !was.Status.StartTime.Equal(p.Status.StartTime) {
		bad("start time %v after %v", p.Status.StartTime, was.Status.StartTime)
	}
	for i := range min(len(was.Status.ContainerStatuses), len(p.Status.ContainerStatuses)) {
		a, b := &was.Status.ContainerStatuses[i], &p.Status.ContainerStatuses[i]
		switch {
		case b.RestartCount < a.RestartCount:
			bad("%d restarts after %d", b.RestartCount, a.RestartCount)
		case b.RestartCount > 0:
			bad("started again without a reason")
		// One whose start was cut off with the agent has ended, and is started again where its pod restarts containers.
		case a.State.Terminated != nil && b.State.Terminated == nil && p.Spec.RestartPolicy == corev1.RestartPolicyNever:
			bad("%+v after %+v", b.State, a.State)
		}
	}
}

package profile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// Waiting are the pods that wait for a permit, of all profiles.
type Waiting struct {
	mu   sync.RWMutex
	pods map[types.UID]*waitingPod
}

func (w *Waiting) add(p *waitingPod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil {
		w.pods = map[types.UID]*waitingPod{}
	}
	w.pods[p.pod.UID] = p
}

func (w *Waiting) remove(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

func (w *Waiting) get(uid types.UID) *waitingPod {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.pods[uid]
}

// Has says whether a pod waits.
func (w *Waiting) Has(uid types.UID) bool { return w.get(uid) != nil }

func (w *Waiting) each(f func(fwk.WaitingPod)) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, p := range w.pods {
		f(p)
	}
}

// Reject has a pod wait no more that is gone, and says whether it did.
func (w *Waiting) Reject(uid types.UID, message string) bool {
	p := w.get(uid)
	return p != nil && p.Reject("", message)
}

// Drop forgets a pod that waits no more and that nobody waits for.
func (w *Waiting) Drop(uid types.UID) {
	if p := w.get(uid); p != nil {
		p.stop()
		w.remove(uid)
	}
}

// waitingPod is one of them. It is decided once.
type waitingPod struct {
	pod     *corev1.Pod
	decided chan *fwk.Status

	mu      sync.Mutex
	pending map[string]*time.Timer // by plugin
	over    bool
}

var _ fwk.WaitingPod = (*waitingPod)(nil)

func newWaitingPod(pod *corev1.Pod, waits map[string]time.Duration) *waitingPod {
	w := &waitingPod{pod: pod, decided: make(chan *fwk.Status, 1), pending: map[string]*time.Timer{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	for plugin, timeout := range waits {
		w.pending[plugin] = time.AfterFunc(timeout, func() {
			w.Reject(plugin, fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v", timeout, plugin))
		})
	}
	return w
}

// GetPod implements [fwk.WaitingPod].
func (w *waitingPod) GetPod() *corev1.Pod { return w.pod }

// GetPendingPlugins implements [fwk.WaitingPod].
func (w *waitingPod) GetPendingPlugins() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for name := range w.pending {
		names = append(names, name)
	}
	return names
}

// Allow implements [fwk.WaitingPod].
func (w *waitingPod) Allow(plugin string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if timer := w.pending[plugin]; timer != nil {
		timer.Stop()
		delete(w.pending, plugin)
	}
	if len(w.pending) == 0 {
		w.decide(nil)
	}
}

// Reject implements [fwk.WaitingPod].
func (w *waitingPod) Reject(plugin, message string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.decide(fwk.NewStatus(fwk.Unschedulable, message).WithPlugin(plugin))
}

// Preempt implements [fwk.WaitingPod]: the pod is to be attempted again soon, as after an error.
func (w *waitingPod) Preempt(plugin, message string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.decide(fwk.AsStatus(errors.New(message)).WithPlugin(plugin))
}

func (w *waitingPod) decide(status *fwk.Status) bool {
	if w.over {
		return false
	}
	w.over = true
	w.decided <- status
	return true
}

func (w *waitingPod) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, timer := range w.pending {
		timer.Stop()
	}
}

// preBinding are pods that plugins do something for before they are bound.
type preBinding struct {
	mu   sync.Mutex
	pods map[types.UID]*preBindPod
}

// preBindPod may be cancelled until all that comes before its binding is done.
type preBindPod struct {
	mu     sync.Mutex
	cancel context.CancelCauseFunc
	state  int // 0: goes on, 1: done, 2: cancelled
}

// CancelPod implements [fwk.PodInPreBind].
func (p *preBindPod) CancelPod(reason string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == 0 {
		p.state = 2
		p.cancel(errors.New(reason))
	}
	return p.state == 2
}

// MarkPrebound implements [fwk.PodInPreBind].
func (p *preBindPod) MarkPrebound() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == 0 {
		p.state = 1
	}
	return p.state == 1
}

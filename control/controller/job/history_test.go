package job

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// history is a job in a world where pods end as chance has it, caches are late, and the controller is killed. The model
// knows each pod that ended while it was tracked: it is to be counted once.
type history struct {
	r       *rand.Rand
	now     time.Time
	version int
	made    int
	job     *batchv1.Job
	pods    map[types.UID]*corev1.Pod
	cached  map[types.UID]*corev1.Pod
	seenJob *batchv1.Job
	pending []change
	lives   int
	// What the model says: how each pod ended, and which indexes have succeeded.
	ended map[types.UID]corev1.PodPhase
	done  map[int]bool
	wrong []string
}

// change is what the watches have still to tell: of a pod, or of the job.
type change struct {
	uid types.UID
	pod *corev1.Pod
	job *batchv1.Job
	own bool
}

func (h *history) violation(format string, args ...any) {
	h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
}

func (h *history) wrote(p *corev1.Pod, own bool) {
	h.version++
	p.ResourceVersion = strconv.Itoa(h.version)
	over := p.DeletionTimestamp != nil && (p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed)
	if over && len(p.Finalizers) == 0 {
		delete(h.pods, p.UID)
		h.pending = append(h.pending, change{uid: p.UID, own: own})
		return
	}
	h.pending = append(h.pending, change{uid: p.UID, pod: p.DeepCopy(), own: own})
}

func (h *history) wroteJob(own bool) {
	h.version++
	h.job.ResourceVersion = strconv.Itoa(h.version)
	h.pending = append(h.pending, change{job: h.job.DeepCopy(), own: own})
}

func newHistory(seed uint64) *history {
	h := &history{
		r: rand.New(rand.NewPCG(seed, 19)), now: time.Unix(1e9, 0), pods: map[types.UID]*corev1.Pod{}, lives: -1,
		ended: map[types.UID]corev1.PodPhase{}, done: map[int]bool{},
	}
	n := func(max int) *int32 { v := int32(1 + h.r.IntN(max)); return &v }
	limit := int32(h.r.IntN(6))
	h.job = &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "j", UID: "job"}, Spec: batchv1.JobSpec{
		Parallelism: n(4), Completions: n(6), BackoffLimit: &limit,
	}}
	h.job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	if h.r.IntN(2) == 0 {
		mode := batchv1.IndexedCompletion
		h.job.Spec.CompletionMode = &mode
		if h.r.IntN(2) == 0 {
			h.job.Spec.BackoffLimitPerIndex = n(2)
			many := int32(1 << 30)
			h.job.Spec.BackoffLimit = &many
		}
	}
	if h.r.IntN(3) == 0 {
		policy := batchv1.Failed
		h.job.Spec.PodReplacementPolicy = &policy
	}
	h.wroteJob(false)
	h.list()
	return h
}

func (h *history) list() {
	h.pending = nil
	h.cached = map[types.UID]*corev1.Pod{}
	for uid, p := range h.pods {
		h.cached[uid] = p.DeepCopy()
	}
	h.seenJob = h.job.DeepCopy()
}

// hear is the next of the events of pods, or of the job: the one may be told before the other.
func (h *history) hear() bool {
	ofJob := h.r.IntN(2) == 0
	for range 2 {
		at := slices.IndexFunc(h.pending, func(c change) bool { return (c.job != nil) == ofJob })
		ofJob = !ofJob
		if at < 0 {
			continue
		}
		c := h.pending[at]
		if h.r.IntN(10) > 0 { // else it is told again
			h.pending = slices.Delete(h.pending, at, at+1)
		}
		switch {
		case c.job != nil:
			h.seenJob = c.job
		case c.pod != nil:
			h.cached[c.uid] = c.pod
		default:
			delete(h.cached, c.uid)
		}
		return true
	}
	return false
}

func (h *history) any() *corev1.Pod {
	if len(h.pods) == 0 {
		return nil
	}
	all := slices.Sorted(maps.Keys(h.pods))
	return h.pods[all[h.r.IntN(len(all))]]
}

// act is what a node, a user, or the clock does.
func (h *history) act(bad int) {
	h.now = h.now.Add(time.Duration(h.r.IntN(60)) * time.Second)
	p := h.any()
	switch n := h.r.IntN(12); {
	case n == 0 && len(h.ended) < 200:
		suspend := h.r.IntN(2) == 0
		h.job.Spec.Suspend = &suspend
		h.wroteJob(false)
	case n == 1:
		parallelism := int32(h.r.IntN(5))
		h.job.Spec.Parallelism = &parallelism
		h.wroteJob(false)
	case p == nil:
	case n == 2 && p.DeletionTimestamp == nil:
		h.delete(p, false)
	default:
		h.finish(p, bad)
	}
}

func (h *history) finish(p *corev1.Pod, bad int) {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return
	}
	p.Status.Phase = corev1.PodSucceeded
	if h.r.IntN(100) < bad || p.DeletionTimestamp != nil && h.r.IntN(2) == 0 {
		p.Status.Phase = corev1.PodFailed
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(h.now)}}
	if tracked(p) {
		h.ended[p.UID] = p.Status.Phase
	}
	h.wrote(p, false)
}

func (h *history) delete(p *corev1.Pod, own bool) {
	if p.DeletionTimestamp == nil {
		at := metav1.NewTime(h.now)
		p.DeletionTimestamp = &at
		h.wrote(p, own)
	}
}

// killed says whether the controller is, before each of its writes.
func (h *history) killed() bool {
	if h.lives > 0 {
		h.lives--
	}
	return h.lives == 0
}

// work is one look of the controller, which has heard of all that it has written itself. It writes in the order in
// which the controller does.
func (h *history) work() {
	if slices.ContainsFunc(h.pending, func(c change) bool { return c.own }) || ended(h.seenJob) {
		return
	}
	pods := make([]*corev1.Pod, 0, len(h.cached))
	for _, uid := range slices.Sorted(maps.Keys(h.cached)) {
		pods = append(pods, h.cached[uid])
	}
	if !h.write(decide(h.seenJob, pods, h.now)) {
		h.lives = -1
		h.list()
	}
}

func (h *history) write(p plan) bool {
	if h.killed() {
		return false
	}
	if h.seenJob.ResourceVersion != h.job.ResourceVersion {
		return true // a conflict
	}
	h.job.Status = *p.status.DeepCopy()
	h.wroteJob(true)
	for _, one := range p.release {
		if h.killed() {
			return false
		}
		if t := h.pods[one.UID]; t != nil && tracked(t) {
			h.let(t, p.status)
		}
	}
	for _, one := range p.remove {
		t := h.pods[one.UID]
		if t == nil || t.ResourceVersion != one.ResourceVersion {
			continue
		}
		if h.killed() {
			return false
		}
		t.Finalizers = nil
		h.wrote(t, true)
		if h.killed() {
			return false
		}
		h.delete(t, true)
	}
	for _, one := range p.end {
		if h.killed() {
			return false
		}
		if t := h.pods[one.UID]; t != nil {
			h.delete(t, true)
		}
	}
	for _, s := range p.create {
		if h.killed() {
			return false
		}
		h.create(s)
	}
	return true
}

// let takes the finalizer of a pod away. The status says by then that it is counted, or that nobody asks.
func (h *history) let(t *corev1.Pod, s batchv1.JobStatus) {
	u := s.UncountedTerminatedPods
	if t.Status.Phase == corev1.PodFailed && !slices.Contains(u.Failed, t.UID) {
		h.violation("%s has failed, and nobody wrote it down", t.UID)
	}
	if h.ended[t.UID] == "" {
		h.ended[t.UID] = corev1.PodUnknown // deleted, and not known to have ended
	}
	if slices.Contains(u.Failed, t.UID) {
		h.ended[t.UID] = corev1.PodFailed
	}
	if i := indexOf(t); h.ended[t.UID] == corev1.PodSucceeded && i >= 0 {
		h.done[i] = true
	}
	t.Finalizers = nil
	h.wrote(t, true)
}

func (h *history) create(s slot) {
	h.made++
	p := podOf(h.job, s)
	p.Name, p.UID = fmt.Sprintf("p%d", h.made), types.UID(fmt.Sprintf("p%04d", h.made))
	p.CreationTimestamp = metav1.NewTime(h.now)
	p.Status.Phase = corev1.PodRunning
	for _, o := range h.pods {
		live := o.DeletionTimestamp == nil && o.Status.Phase == corev1.PodRunning
		if live && s.index >= 0 && indexOf(o) == s.index {
			h.violation("%s and %s are both of index %d", o.UID, p.UID, s.index)
		}
	}
	h.pods[p.UID] = p
	h.wrote(p, true)
}

// end has everything come to its end, and asks whether all is counted.
func (h *history) end() {
	h.lives = -1
	parallelism, suspend := int32(3), false
	h.job.Spec.Parallelism, h.job.Spec.Suspend = &parallelism, &suspend
	h.wroteJob(false)
	for n := 0; !ended(h.job) || len(h.pending) > 0; n++ {
		if n > 5000 {
			h.violation("it does not end: %+v", h.job.Status)
			return
		}
		h.now = h.now.Add(11 * time.Minute)
		if p := h.any(); p != nil && h.r.IntN(3) == 0 {
			h.finish(p, 10)
		}
		for h.hear() {
		}
		h.work()
	}
	s, u := h.job.Status, h.job.Status.UncountedTerminatedPods
	if len(u.Failed)+len(u.Succeeded) > 0 || s.Active > 0 || *s.Terminating > 0 {
		h.violation("it has ended with %+v", s)
	}
	counts := map[corev1.PodPhase]int32{}
	for _, phase := range h.ended {
		counts[phase]++
	}
	if s.Failed != counts[corev1.PodFailed] {
		h.violation("%d pods have failed, and %d are counted", counts[corev1.PodFailed], s.Failed)
	}
	if h.job.Spec.CompletionMode == nil && s.Succeeded != counts[corev1.PodSucceeded] {
		h.violation("%d pods have succeeded, and %d are counted", counts[corev1.PodSucceeded], s.Succeeded)
	}
	if want := (indexes{}).with(slices.Collect(maps.Keys(h.done))).String(); h.job.Spec.CompletionMode != nil && s.CompletedIndexes != want {
		h.violation("the indexes %q have succeeded, and %q are counted", want, s.CompletedIndexes)
	}
	switch {
	case is(s.Conditions, batchv1.JobComplete):
		if s.Succeeded < *h.job.Spec.Completions || s.CompletionTime == nil {
			h.violation("it is complete with %+v", s)
		}
	case h.job.Spec.BackoffLimitPerIndex == nil && s.Failed <= *h.job.Spec.BackoffLimit:
		h.violation("it has failed with %+v", s)
	}
	for _, p := range h.pods {
		if tracked(p) {
			h.violation("%s is still tracked", p.UID)
		}
	}
}

// TestHistories has jobs run in worlds of chance. BERTH_HISTORIES is how many there are.
func TestHistories(t *testing.T) {
	t.Parallel()
	count := 10000
	if text := os.Getenv("BERTH_HISTORIES"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for seed := range count {
		h := newHistory(uint64(seed))
		for range 20 + h.r.IntN(100) {
			switch n := h.r.IntN(100); {
			case n < 30:
				h.act(30)
			case n < 60:
				h.hear()
			case n < 97:
				h.work()
			case n < 99:
				h.lives = 1 + h.r.IntN(6)
			default:
				h.list() // the watch was broken
			}
		}
		h.end()
		if len(h.wrong) > 0 {
			t.Fatalf("seed %d: %v", seed, h.wrong)
		}
	}
}

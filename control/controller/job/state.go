package job

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/set"

	"github.com/berth-node/berth/control/controller/owned"
)

// plan is what is to be done about a job, in the order in which it is done: what is written down comes before what can
// only be done once, so that whoever is killed in between finds what was counted, and counts nothing twice.
type plan struct {
	status  batchv1.JobStatus
	release []*corev1.Pod // these are counted, and may go
	remove  []*corev1.Pod // these go and do not count
	end     []*corev1.Pod // these go since the job has ended
	create  []slot
	again   time.Duration // zero: what happens leads to the next look
	events  []event
}

// slot is a pod that is to be made, of an index or of none, which is -1.
type slot struct {
	index int
	after *corev1.Pod // the one of its index that failed last
}

type event struct{ kind, reason, message string }

// state is a job and its pods while it is decided about them.
type state struct {
	job    *batchv1.Job
	status batchv1.JobStatus
	pods   []*corev1.Pod
	now    time.Time
	plan   plan

	active, terminating []*corev1.Pod
	succeeded, failed   int
	done, lost          indexes
	target              *batchv1.JobCondition // how it ends, if it does
	// counting are the pods that are written down as about to be counted, by how they ended. There may be as many as
	// pods: the status is also what users have written.
	counting struct{ succeeded, failed set.Set[types.UID] }
}

// decide is what is to be done, by a job and all the pods that are its own.
func decide(job *batchv1.Job, pods []*corev1.Pod, now time.Time) plan {
	s := &state{job: job, status: *job.Status.DeepCopy(), pods: pods, now: now}
	if s.status.UncountedTerminatedPods == nil {
		s.status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if s.status.StartTime == nil && !suspended(s.job) {
		s.status.StartTime = &metav1.Time{Time: now}
	}
	for _, p := range pods {
		switch {
		case owned.Active(p):
			s.active = append(s.active, p)
		case owned.Terminating(p):
			s.terminating = append(s.terminating, p)
		}
	}
	s.settle()
	s.judge()
	s.count()
	switch {
	case s.target != nil:
		s.finish()
	case job.DeletionTimestamp == nil:
		s.manage()
		s.resume()
	}
	s.numbers()
	s.plan.status = s.status
	return s.plan
}

func suspended(job *batchv1.Job) bool { return job.Spec.Suspend != nil && *job.Spec.Suspend }

func indexed(job *batchv1.Job) bool {
	return job.Spec.CompletionMode != nil && *job.Spec.CompletionMode == batchv1.IndexedCompletion
}

func (s *state) perIndex() bool { return indexed(s.job) && s.job.Spec.BackoffLimitPerIndex != nil }

func completions(job *batchv1.Job) int {
	if job.Spec.Completions == nil {
		return 0
	}
	return int(*job.Spec.Completions)
}

// waits says whether a pod is made only when the one before has ended, and not when it is about to.
func (s *state) waits() bool {
	p := s.job.Spec.PodReplacementPolicy
	return p != nil && *p == batchv1.Failed || p == nil && s.job.Spec.PodFailurePolicy != nil
}

func tracked(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) }

// lostPod says whether a pod counts as failed. One that is deleted may never say how it ended: its node may be gone.
func (s *state) lostPod(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded && !s.waits()
}

// settle adds to the numbers what was written down as about to be counted and has been let go since.
func (s *state) settle() {
	held := map[types.UID]bool{}
	for _, p := range s.pods {
		if tracked(p) {
			held[p.UID] = true
		}
	}
	u := s.status.UncountedTerminatedPods
	still := func(all []types.UID) ([]types.UID, int32) {
		left := slices.DeleteFunc(slices.Clone(all), func(uid types.UID) bool { return !held[uid] })
		return slices.Clip(left), int32(len(all) - len(left))
	}
	var n int32
	u.Succeeded, n = still(u.Succeeded)
	s.status.Succeeded += n
	u.Failed, n = still(u.Failed)
	s.status.Failed += n
	s.counting.succeeded, s.counting.failed = set.New(u.Succeeded...), set.New(u.Failed...)
	s.succeeded = int(s.status.Succeeded) + len(u.Succeeded)
	s.failed = int(s.status.Failed) + len(u.Failed)
	if indexed(s.job) {
		s.done = parse(s.status.CompletedIndexes, completions(s.job))
		if s.perIndex() && s.status.FailedIndexes != nil {
			s.lost = parse(*s.status.FailedIndexes, completions(s.job))
		}
	}
	var done, lost []int
	for _, p := range s.pods {
		switch s.add(p) {
		case hasDone:
			done = append(done, indexOf(p))
		case hasLost:
			lost = append(lost, indexOf(p))
		}
	}
	s.done, s.lost = s.done.with(done), s.lost.with(lost)
	if indexed(s.job) {
		s.succeeded = s.done.count()
	}
}

// What a pod says of its index.
const (
	hasNothing = iota
	hasDone
	hasLost
)

// add has a pod that was not counted before be part of what is decided by, and says what its index has by that.
func (s *state) add(p *corev1.Pod) int {
	if !tracked(p) {
		return hasNothing
	}
	i := indexOf(p)
	if indexed(s.job) && (i < 0 || i >= completions(s.job)) {
		return hasNothing
	}
	if p.Status.Phase == corev1.PodSucceeded {
		switch {
		case s.counting.failed.Has(p.UID): // it was deleted, and had been given up before it succeeded
		case indexed(s.job):
			return hasDone
		case !s.counting.succeeded.Has(p.UID):
			s.succeeded++
		}
		return hasNothing
	}
	if !s.lostPod(p) {
		return hasNothing
	}
	v := judge(s.job.Spec.PodFailurePolicy, p)
	if v.action == batchv1.PodFailurePolicyActionIgnore {
		return hasNothing
	}
	if !s.counting.failed.Has(p.UID) {
		s.failed++
	}
	if s.perIndex() {
		if counted, _ := failuresOf(p); v.action == batchv1.PodFailurePolicyActionFailIndex || counted >= int(*s.job.Spec.BackoffLimitPerIndex) {
			return hasLost
		}
	}
	return hasNothing
}

// maxUncounted bounds what is written down at a time: a status with the UIDs of 10,000 pods would be none.
const maxUncounted = 500

// count writes down which pods are about to be counted, and lets those go that are.
func (s *state) count() {
	u := s.status.UncountedTerminatedPods
	kept := s.kept()
	success := s.target != nil && s.target.Type != batchv1.JobFailed
	for _, p := range s.pods {
		if !tracked(p) {
			continue
		}
		if len(s.plan.release) >= maxUncounted {
			s.plan.again = time.Millisecond
			break
		}
		lost := s.lostPod(p) || s.target != nil && p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded
		switch {
		case p.Status.Phase == corev1.PodSucceeded:
			if !indexed(s.job) && !s.counting.succeeded.Has(p.UID) && !s.counting.failed.Has(p.UID) {
				u.Succeeded = append(u.Succeeded, p.UID)
				s.counting.succeeded.Insert(p.UID)
			}
		case lost && kept[p.UID]:
			continue
		case lost:
			i := indexOf(p)
			counts := p.Status.Phase == corev1.PodFailed || s.lostPod(p) || !success
			if indexed(s.job) && (i < 0 || i >= completions(s.job)) || judge(s.job.Spec.PodFailurePolicy, p).action == batchv1.PodFailurePolicyActionIgnore {
				counts = false
			}
			if counts && !s.counting.failed.Has(p.UID) {
				u.Failed = append(u.Failed, p.UID)
				s.counting.failed.Insert(p.UID)
			}
		case s.job.DeletionTimestamp == nil:
			continue
		}
		s.plan.release = append(s.plan.release, p)
	}
	if indexed(s.job) {
		s.status.CompletedIndexes = s.done.String()
		s.status.Succeeded = int32(s.done.count())
		if s.perIndex() {
			text := s.lost.String()
			s.status.FailedIndexes = &text
		}
	}
}

// kept are failed pods that stay until another one of their index is made: that one says how often the index failed.
func (s *state) kept() map[types.UID]bool {
	kept := map[types.UID]bool{}
	if s.target != nil || s.job.DeletionTimestamp != nil {
		return kept
	}
	for _, p := range s.lastFailed() {
		kept[p.UID] = true
	}
	return kept
}

// lastFailed are the pods that failed last of those indexes that are tried again and have no other pod yet.
func (s *state) lastFailed() map[int]*corev1.Pod {
	last := map[int]*corev1.Pod{}
	if !s.perIndex() {
		return last
	}
	most := map[int]int{}
	for _, p := range s.pods {
		i := indexOf(p)
		if _, n := failuresOf(p); i >= 0 {
			most[i] = max(most[i], n)
		}
	}
	for _, p := range s.pods {
		i := indexOf(p)
		_, n := failuresOf(p)
		if tracked(p) && s.lostPod(p) && i >= 0 && i < completions(s.job) && !s.done.has(i) && !s.lost.has(i) && n == most[i] {
			last[i] = p
		}
	}
	return last
}

// numbers are what the status says of the moment.
func (s *state) numbers() {
	gone := map[types.UID]bool{}
	for _, p := range slices.Concat(s.plan.remove, s.plan.end) {
		gone[p.UID] = true
	}
	active, ready := int32(0), int32(0)
	for _, p := range s.active {
		if gone[p.UID] {
			continue
		}
		active++
		if owned.Ready(p) {
			ready++
		}
	}
	terminating := int32(len(s.terminating) + len(gone))
	s.status.Active, s.status.Ready, s.status.Terminating = active, &ready, &terminating
}

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const idle = time.Hour

// Run sends what there is to say until ctx ends and every call has. It runs once.
func (w *Writer) Run(ctx context.Context) {
	defer w.wait.Wait()
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(w.dispatch(ctx))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-w.wake:
		}
	}
}

// touch has an entry looked at.
func (w *Writer) touch(e *entry) {
	e.due = time.Time{}
	w.dirty[e] = struct{}{}
	w.wakeUp()
}

func (w *Writer) touchAll() {
	for _, e := range w.pods {
		w.touch(e)
	}
	for _, e := range w.mirrors {
		w.touch(e)
	}
}

func (w *Writer) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// answers takes that the source has heard from the server.
func (w *Writer) answers() {
	w.pace.hears(time.Now())
	w.wakeUp()
}

// dispatch begins the calls that it is time for, those first that have waited longest, and says how long to wait for
// the next.
func (w *Writer) dispatch(ctx context.Context) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	at := now.Add(idle)
	var ready []*entry
	for e := range w.dirty {
		if e.busy {
			continue
		}
		due := e.due
		if e.trouble.until.After(due) {
			due = e.trouble.until
		}
		if due.After(now) {
			at = earlier(at, due)
			continue
		}
		ready = append(ready, e)
	}
	slices.SortFunc(ready, func(a, b *entry) int { return a.since.Compare(b.since) })
	for _, e := range ready {
		if !w.pace.may(now) {
			if w.pace.until.After(now) {
				at = earlier(at, w.pace.until)
			}
			break // else the end of a call wakes
		}
		if due := w.begin(ctx, e, now); due.After(now) {
			e.due = due
			at = earlier(at, due)
		}
	}
	return at.Sub(now)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// begin does what is next about a pod, or says when it is to be done.
func (w *Writer) begin(ctx context.Context, e *entry, now time.Time) time.Time {
	a, due, err := w.next(e, now)
	switch {
	case err != nil:
		w.refused(e, err) // no status of ours cannot be compared: it is not lost for it
		e.trouble.again(now, time.Second, mostRefuse)
		return e.trouble.until
	case a.verb == nothing:
		e.since, e.moved = time.Time{}, nil
		delete(w.dirty, e)
		w.drop(e)
		return now
	case a.verb == waits:
		delete(w.dirty, e)
		return now
	case due.After(now):
		return due
	}
	delete(w.dirty, e)
	e.busy = true
	epoch := w.pace.begin()
	w.wait.Go(func() {
		got, err := w.do(ctx, a)
		w.finish(ctx, e, a, got, err, epoch)
	})
	return now
}

// drop forgets an entry that nothing can come of any more.
func (w *Writer) drop(e *entry) {
	switch {
	case e.static && e.want == nil && e.has == nil && !e.doubt:
		delete(w.mirrors, e.key)
	case !e.static && e.absent && (e.gone || e.want == nil):
		delete(w.pods, e.uid)
	}
}

// do calls the server.
func (w *Writer) do(ctx context.Context, a act) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	var got corev1.Pod
	var err error
	switch a.verb {
	case read:
		err = w.cfg.Client.Get(ctx, pods, a.key, &got)
	case patch:
		var data []byte
		if data, err = body(a.has, a.diff); err == nil {
			err = w.cfg.Client.Patch(ctx, pods, a.key, types.StrategicMergePatchType, data, &got, "status")
		}
	case remove:
		err = w.cfg.Client.Delete(ctx, pods, a.key, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &a.has.uid},
		})
	case create:
		err = w.cfg.Client.Create(ctx, pods, a.pod, &got)
	case nothing, waits:
	}
	if a.verb != read {
		w.cfg.Observer.StatusWrite(string(a.verb), err)
	}
	return &got, err
}

// finish takes what has come of a call.
func (w *Writer) finish(ctx context.Context, e *entry, a act, got *corev1.Pod, err error, epoch int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.busy = false
	w.pace.running--
	if ctx.Err() != nil {
		return // who was cut off knows nothing
	}
	if err != nil {
		w.failed(e, a, err, epoch)
	} else {
		w.answered()
		w.took(e, &a, got)
	}
	if a.resets != w.resets {
		e.doubt = true // what was answered was said by the server as it was before
	}
	w.touch(e)
}

// answered takes that the server answers. When it did not before, those that have waited for it need not wait for
// longer, but for the few that fail while others do not.
func (w *Writer) answered() {
	if !w.pace.ok() {
		return
	}
	w.cfg.Log.Info("the API server takes statuses again")
	now := time.Now()
	for e := range w.dirty {
		if n := e.trouble.failures; n > 0 && !e.trouble.refused {
			e.trouble.until = earlier(e.trouble.until, now.Add(rand.N(time.Duration(n)*spread)))
		}
	}
}

// took takes what the server has answered.
func (w *Writer) took(e *entry, a *act, got *corev1.Pod) {
	if a.verb == read {
		w.looked(e, got)
		return
	}
	e.trouble = trouble{}
	switch a.verb {
	case patch:
		e.learn(seenOf(got))
		e.residual = a.residual(got)
		if e.version == a.version {
			e.moved = nil
		}
		w.written(e, a)
	case remove:
		e.removed = a.has.uid
		if e.static {
			if e.has != nil && e.has.uid == a.has.uid {
				e.has = nil
			}
		} else {
			e.want, e.has = nil, &seen{uid: a.has.uid, version: a.has.version, deleting: true}
		}
		w.written(e, a)
	case create:
		e.learn(seenOf(got))
	case nothing, waits, read:
	}
}

// looked takes what the server has, whatever it was thought to have: it may have gone back to an older state.
func (w *Writer) looked(e *entry, got *corev1.Pod) {
	has := seenOf(got)
	e.doubt = false
	switch {
	case e.static && !has.mirror:
		e.has = nil
		w.refused(e, fmt.Errorf("make mirror pod: there is another pod of this name, with UID %s", has.uid))
		e.trouble.again(time.Now(), time.Second, mostRefuse)
	case !e.static && has.uid != e.uid:
		e.lose()
	default:
		e.has, e.residual = has, ""
	}
}

// written takes that the server has what the node says, or said when the call began.
func (w *Writer) written(e *entry, a *act) {
	now := time.Now()
	w.cfg.Observer.StatusWritten(now.Sub(a.since))
	e.since = time.Time{}
	if e.version != a.version {
		e.since = now
	}
}

// residual is what of a status the server has not taken, though it was sent: fields that it does not know, or that
// somebody changes there. It is not sent again and again.
func (a *act) residual(got *corev1.Pod) string {
	want := a.wanted(&got.Status, nil)
	if equality.Semantic.DeepEqual(&want, &got.Status) {
		return ""
	}
	d, err := diff(&got.Status, &want)
	if err != nil || len(d) == len(empty) {
		return ""
	}
	return string(d)
}

// failed takes the error of a call.
func (w *Writer) failed(e *entry, a act, err error, epoch int) {
	now := time.Now()
	after, _ := apierrors.SuggestsClientDelay(err)
	retry := time.Duration(after) * time.Second
	switch {
	case apierrors.IsNotFound(err) && (a.verb == read || a.verb == patch):
		w.answered()
		e.lose()
	case apierrors.IsNotFound(err) && a.verb == remove:
		// It is not there, or not yet where the server looks whose the pod is: its copy of all pods may be late.
		w.answered()
		e.doubt = true
		e.trouble.again(now, 10*time.Millisecond, time.Second)
	case apierrors.IsConflict(err) && a.verb == remove && !e.static:
		w.answered()
		e.lose()
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		w.answered()
		e.doubt = true
		if e.trouble.failures++; e.trouble.failures > 1 {
			e.trouble.until = now.Add(delay(e.trouble.failures-1, 10*time.Millisecond, time.Second))
		}
	case apierrors.IsInternalError(err):
		// That may be of this pod alone, as with a webhook that fails.
		e.trouble.again(now, firstDelay, mostDelay)
	case isAway(err):
		e.trouble.again(now, firstDelay, mostDelay)
		if w.pace.away(epoch, now, retry) {
			w.cfg.Log.Warn("the API server takes no statuses: they are kept, and sent when it does", "error", err)
		}
	default:
		w.answered()
		w.refused(e, fmt.Errorf("%s %s: %w", a.verb, a.key, err))
		e.trouble.again(now, time.Second, mostRefuse)
	}
	e.trouble.until = latest(e.trouble.until, now.Add(retry))
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// isAway says whether an error is the server's or the way's, and none of the pod.
func isAway(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code == 0 || code >= 500 || code == 429 || code == 408 || code == 401
}

// refused says once that the server does not take what is said of a pod.
func (w *Writer) refused(e *entry, err error) {
	e.trouble.refused = true
	if e.trouble.told == err.Error() {
		return
	}
	e.trouble.told = err.Error()
	uid := e.uid
	if e.static && e.want != nil {
		uid = e.want.UID
	}
	w.cfg.Log.Warn("the status of a pod is not at the API server", "pod", e.key.String(), "uid", uid, "error", err)
}

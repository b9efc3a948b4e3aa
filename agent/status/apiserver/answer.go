package apiserver

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// answers takes in what the server has answered. The lock of the Writer is held.
type answers struct{ w *Writer }

// took takes what the server has answered.
func (x answers) took(e *entry, a *act, got *corev1.Pod) {
	if a.verb == read {
		x.looked(e, got)
		return
	}
	e.trouble = trouble{}
	switch a.verb {
	case patch:
		e.learn(seenOf(got))
		e.residual = a.residual(got)
		e.repeated(a.version)
		if e.version == a.version {
			e.moved = nil
		}
		x.written(e, a)
	case remove:
		e.removed = a.has.uid
		if e.static {
			if e.has != nil && e.has.uid == a.has.uid {
				e.has = nil
			}
		} else {
			e.want, e.has = nil, &seen{uid: a.has.uid, version: a.has.version, deleting: true}
		}
		x.written(e, a)
	case create:
		e.learn(seenOf(got))
	case nothing, waits, read:
	}
}

// repeated takes that a version was sent. One that has to be sent again and again is undone by somebody each time, who
// is not to be fought with at full speed.
func (e *entry) repeated(version int) {
	if version != e.sent {
		e.sent, e.repeats = version, 0
		return
	}
	e.repeats++
	e.trouble.until = time.Now().Add(delay(e.repeats, quiet, mostDelay))
}

// looked takes what the server has, whatever it was thought to have: it may have gone back to an older state.
func (x answers) looked(e *entry, got *corev1.Pod) {
	e.doubt = false
	if got == nil {
		e.lose()
		return
	}
	has := seenOf(got)
	switch {
	case e.static && !has.mirror:
		e.has = nil
		x.refused(e, fmt.Errorf("make mirror pod: there is another pod of this name, with UID %s", has.uid))
		e.trouble.again(time.Now(), time.Second, mostRefuse)
	case !e.static && has.uid != e.uid:
		e.lose()
	default:
		e.has, e.residual = has, ""
	}
}

// written takes that the server has what the node says, or said when the call began.
func (x answers) written(e *entry, a *act) {
	now := time.Now()
	if !a.since.IsZero() {
		x.w.cfg.Observer.StatusWritten(now.Sub(a.since))
	}
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
func (x answers) failed(e *entry, a *act, err error, epoch int) {
	now := time.Now()
	after, _ := apierrors.SuggestsClientDelay(err)
	retry := min(time.Duration(after)*time.Second, mostRefuse)
	switch {
	case errors.Is(err, errSame):
		if e.has == a.has {
			same := *a.has
			same.status = a.status
			e.has = &same
		}
	case apierrors.IsNotFound(err) && a.verb == patch:
		x.w.answered()
		e.lose()
	case apierrors.IsNotFound(err) && a.verb == remove:
		// It is not there, or not yet where the server looks whose the pod is: its copy of all pods may be late.
		x.w.answered()
		e.doubt = true
		e.trouble.again(now, 10*time.Millisecond, time.Second)
	case apierrors.IsConflict(err) && a.verb == remove && !e.static:
		x.w.answered()
		e.lose()
	case apierrors.IsAlreadyExists(err):
		x.w.answered()
		e.doubt = true
		if e.trouble.failures > 2 {
			x.refused(e, fmt.Errorf("make mirror pod: a pod of another node has its name: %w", err))
		}
		e.trouble.again(now, 10*time.Millisecond, mostRefuse)
	case apierrors.IsConflict(err):
		x.w.answered()
		e.doubt = true
		if e.trouble.failures++; e.trouble.failures > 1 {
			e.trouble.until = now.Add(delay(e.trouble.failures-1, 10*time.Millisecond, time.Second))
		}
	case apierrors.IsInternalError(err):
		// That may be of this pod alone, as with a webhook that fails.
		e.trouble.again(now, firstDelay, mostDelay)
	case isAway(err):
		e.trouble.again(now, firstDelay, mostDelay)
		if x.w.pace.away(epoch, now, retry) {
			x.w.cfg.Log.Warn("the API server takes no statuses: they are kept, and sent when it does", "error", err)
		}
	default:
		x.w.answered()
		x.refused(e, fmt.Errorf("%s %s: %w", a.verb, a.key, err))
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
func (x answers) refused(e *entry, err error) {
	e.trouble.refused = true
	if e.trouble.told == err.Error() {
		return
	}
	e.trouble.told = err.Error()
	uid := e.uid
	if e.static && e.want != nil {
		uid = e.want.UID
	}
	x.w.cfg.Log.Warn("the status of a pod is not at the API server", "pod", e.key.String(), "uid", uid, "error", err)
}

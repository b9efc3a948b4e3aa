package audit

import (
	"errors"
	"sync/atomic"
	"time"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
)

const (
	// mostEvents and mostBytes bound what waits to be written or sent. Kubernetes bounds the events of the first queue
	// only: with a receiver that hangs, what is on its way to it takes memory without end.
	mostEvents = 10_000
	mostBytes  = 64 << 20
	// headSize is about what an event takes beside its objects.
	headSize = 2 << 10
	// lastWait is how long the end of the process waits for what is not written or sent yet.
	lastWait = 10 * time.Second
)

// errBehind is why an event is lost: too many are waiting already.
var errBehind = errors.New("too many events are not written yet")

// hold counts the events that wait.
type hold struct{ events, bytes atomic.Int64 }

// take counts an event in, unless there are too many.
func (h *hold) take(e *auditapi.Event) bool {
	events, bytes := h.events.Add(1), h.bytes.Add(size(e))
	if events > mostEvents || bytes > mostBytes {
		h.give(e)
		return false
	}
	return true
}

// give counts an event out.
func (h *hold) give(e *auditapi.Event) {
	h.events.Add(-1)
	h.bytes.Add(-size(e))
}

// size is about what an event takes of memory.
func size(e *auditapi.Event) int64 {
	n := int64(headSize)
	if e.RequestObject != nil {
		n += int64(len(e.RequestObject.Raw))
	}
	if e.ResponseObject != nil {
		n += int64(len(e.ResponseObject.Raw))
	}
	return n
}

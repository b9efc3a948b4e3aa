package queue

import (
	"container/list"

	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// maxRecorded bounds how many events are kept for pods that are being attempted. An attempt that goes on for longer, as
// one that waits for a permit, has missed some, and its pod is attempted again whatever they were.
const maxRecorded = 10_000

// flights are the pods that are being attempted, and what has happened meanwhile: it may be just what makes them
// schedulable, and comes before anybody knows that they are not.
type flights struct {
	pods   map[types.UID]*list.Element // of *flight
	order  list.List                   // by when they began
	events []record
	first  uint64 // the number of events[0]
}

type flight struct {
	uid  types.UID
	from uint64
}

// record is something that happened.
type record struct {
	event         fwk.ClusterEvent
	before, after any
	// only is the pod that it concerns; empty: all.
	only types.UID
}

func newFlights() *flights { return &flights{pods: map[types.UID]*list.Element{}} }

func (f *flights) begin(uid types.UID) {
	f.end(uid)
	f.pods[uid] = f.order.PushBack(&flight{uid, f.first + uint64(len(f.events))})
}

func (f *flights) end(uid types.UID) {
	e := f.pods[uid]
	if e == nil {
		return
	}
	f.order.Remove(e)
	delete(f.pods, uid)
	oldest := f.order.Front()
	if oldest == nil {
		f.drop(len(f.events))
		return
	}
	if from := oldest.Value.(*flight).from; from > f.first { // it is a list of flights
		f.drop(int(from - f.first))
	}
}

// drop forgets the first n events.
func (f *flights) drop(n int) {
	f.first += uint64(n)
	kept := copy(f.events, f.events[n:])
	clear(f.events[kept:])
	f.events = f.events[:kept]
}

func (f *flights) add(r record) {
	if len(f.pods) == 0 {
		return
	}
	if len(f.events) >= maxRecorded {
		f.drop(maxRecorded / 2)
	}
	f.events = append(f.events, r)
}

func (f *flights) has(uid types.UID) bool { return f.pods[uid] != nil }

// since are the events since a pod's attempt began, and whether these are all.
func (f *flights) since(uid types.UID) (events []record, all bool) {
	e := f.pods[uid]
	if e == nil {
		return nil, true
	}
	from := e.Value.(*flight).from // it is a list of flights
	if from < f.first {
		return nil, false
	}
	return f.events[from-f.first:], true
}

package queues

import (
	"testing"
	"time"
)

// TestSetElsewhere has a gauge that somebody else sets end nothing.
func TestSetElsewhere(t *testing.T) {
	returned := make(chan bool, 1)
	go func() {
		defer close(returned)
		unasked{}.Set(1)
		returned <- true
	}()
	if !<-returned {
		t.Error("the goroutine has ended")
	}
}

// TestWork has items that are worked on at the same time told apart by when they were begun.
func TestWork(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	var w work
	w.begin(at(0))
	w.begin(at(3))
	w.begin(at(5))
	w.end(at(7.001), 4*time.Second) // the one of 3
	if total, longest := w.since(at(10)); total != 15*time.Second || longest != 10*time.Second {
		t.Errorf("two are at it for %v, one for %v", total, longest)
	}
	w.end(at(10), 10*time.Second)
	if total, longest := w.since(at(10)); total != 5*time.Second || longest != 5*time.Second {
		t.Errorf("one is at it for %v, one for %v", total, longest)
	}
	w.end(at(10), 5*time.Second)
	w.end(at(10), time.Second) // nobody is
	if total, longest := w.since(at(11)); total != 0 || longest != 0 {
		t.Errorf("nobody is at it for %v, one for %v", total, longest)
	}
}

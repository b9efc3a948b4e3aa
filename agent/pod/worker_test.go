package pod

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-node/berth/agent/pod/plan"
)

// TestWorkerLooksOnce: what has been told by then is one thing new, whoever told it and how often.
func TestWorkerLooksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &worker{mail: newMailbox(), work: work{results: make(chan result), tasks: map[string]task{}}}
		for _, name := range []string{"a", "b", "c"} {
			s := plan.Step{Kind: plan.Start, Container: name}
			w.work.tasks[s.Key()] = task{step: s}
			go func() { w.work.results <- result{step: s} }()
		}
		synctest.Wait()
		w.mail.putProbes("id", plan.ProbeResults{})
		timer := time.NewTimer(time.Hour)
		w.wait(t.Context(), timer, time.Time{})
		if len(w.work.tasks) > 0 {
			t.Errorf("%d steps are not taken note of", len(w.work.tasks))
		}
		w.read(t.Context())
		if len(w.probes) != 1 {
			t.Error("the mailbox is not read")
		}
		select {
		case <-w.mail.wake:
			t.Error("what was read wakes the worker up again")
		default:
		}
	})
}

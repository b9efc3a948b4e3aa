package pressure

import (
	"fmt"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/signal"
)

// TestCounted: a pod that takes its time to go was evicted when it was told, and is not evicted again when it is
// finished.
func TestCounted(t *testing.T) {
	n := &Node{counted: newCounted()}
	decide := func(uid string, r eviction.Result) {
		d := eviction.Decision{Signal: signal.MemoryAvailable, Pod: eviction.Name{UID: types.UID(uid)}, Result: r}
		if d.Result.Error == "" || d.Result.Told {
			n.counted.evicted(&d)
		}
	}
	late := eviction.Result{Error: eviction.ErrNotGone.Error(), Told: true}
	decide("a", late)
	decide("a", late)
	decide("a", eviction.Result{})
	decide("b", eviction.Result{})
	decide("c", eviction.Result{Error: "no such pod"})
	var m dto.Metric
	if err := n.counted.evictions.WithLabelValues("memory.available").Write(&m); err != nil || m.GetCounter().GetValue() != 2 {
		t.Errorf("%v are counted, %v", m.GetCounter().GetValue(), err)
	}
	for i := range 10 * keptTold {
		decide(fmt.Sprint("x", i), late)
	}
	if len(n.counted.told) != keptTold {
		t.Errorf("%d are remembered", len(n.counted.told))
	}
}

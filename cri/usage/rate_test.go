package usage

import (
	"testing"
	"time"

	"github.com/berth-node/berth/cgroups"
)

func TestCPURate(t *testing.T) {
	var r Rate
	began := time.Now()
	for i, c := range []struct {
		after, usage time.Duration
		want         int64 // in thousandths of a core; -1 = not known
	}{
		{0, time.Second, -1},
		{50 * time.Millisecond, 2 * time.Second, -1}, // too soon to tell
		{2 * time.Second, 2 * time.Second, 500},
		{2*time.Second + 50*time.Millisecond, 3 * time.Second, 500}, // the one before holds
		{4 * time.Second, 6 * time.Second, 2000},
		{5 * time.Second, time.Second, 2000}, // it begins again
		{6 * time.Second, 1250 * time.Millisecond, 250},
	} {
		var u cgroups.Usage
		u.Time, u.CPU.UsageNs = began.Add(c.after), uint64(c.usage)
		got := int64(-1)
		if v := r.see(u); v != nil {
			got = int64(v.Value) / 1e6
		}
		if got != c.want {
			t.Errorf("%d: %d thousandths, want %d", i, got, c.want)
		}
	}
}

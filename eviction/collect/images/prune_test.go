package images

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// shared are images a and b on one layer, and c alone; d is pinned, and has a layer with c in common.
func shared(d *disk) func() map[string]map[string]int64 {
	for _, id := range []string{"a", "b", "c"} {
		d.add(id, 150)
	}
	d.add("d", 50).Pinned = true
	all := map[string]map[string]int64{
		"a": {"base": 100, "a": 50}, "b": {"base": 100, "b": 50}, "c": {"own": 100, "d": 50}, "d": {"d": 50},
	}
	return func() map[string]map[string]int64 {
		out := map[string]map[string]int64{}
		for _, i := range d.images {
			out[i.GetId()] = maps.Clone(all[i.GetId()])
		}
		return out
	}
}

// TestPruneCountsOnce: a layer is counted when the last image with it goes, and not while one is left. What it says
// before and after is the same.
func TestPruneCountsOnce(t *testing.T) {
	d := &disk{}
	c, _ := collector(d, policy)
	c.cfg.Parts = shared(d)
	at := time.Now()
	if err := c.detect(t.Context(), at.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		got, err := c.Prune(t.Context(), at, dry)
		var bytes []int64
		for _, i := range got {
			bytes = append(bytes, i.Bytes)
		}
		if err != nil || !slices.Equal(bytes, []int64{50, 150, 100}) {
			t.Errorf("dry run %v: %v, %+v", dry, err, got)
		}
		if left := d.left(); dry != (left == "a b c d") || !dry && left != "d" {
			t.Errorf("dry run %v: left %s", dry, left)
		}
	}
}

// TestFreedIsCountedOnce: for want of 150 bytes it takes more than two images of 150 that have 100 in common with
// others.
func TestFreedIsCountedOnce(t *testing.T) {
	d := &disk{others: 400}
	c, _ := collector(d, Policy{High: 85, Low: 78})
	c.cfg.Parts = shared(d)
	if err := c.detect(t.Context(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	collect(t, c, time.Now())
	if left := d.left(); left != "c d" {
		t.Errorf("left: %s", left)
	}
}

// TestPruneKeeps what is used, wanted, was used just now, is young, or comes to be wanted while others are removed.
func TestPruneKeeps(t *testing.T) {
	d := &disk{}
	for _, id := range []string{"a", "late", "recent", "used", "wanted"} {
		d.add(id, 10)
	}
	c, _ := collector(d, policy)
	wanted := []string{"registry.test/wanted:1"}
	c.cfg.Wanted = func() []string {
		if len(d.images) < 6 {
			return append(wanted, "registry.test/late:1") // its pod has come when the first has gone
		}
		return wanted
	}
	at := time.Now()
	d.add("young", 10)
	d.containers = []*runtimeapi.Container{{ImageId: "used"}, {ImageId: "recent"}}
	if err := c.detect(t.Context(), at.Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	for key, r := range c.images {
		if key != "young " {
			r.first = at.Add(-time.Hour)
		}
	}
	d.containers = d.containers[:1]
	got, err := c.Prune(t.Context(), at, false)
	if left := d.left(); err != nil || left != "late recent used wanted young" {
		t.Errorf("%v, %+v, left %s", err, got, left)
	}
	if len(got) != 1 || got[0].ID != "a" {
		t.Errorf("said %+v", got)
	}
}

// TestContentGoes has what no image explains removed with the images, and not by a dry run.
func TestContentGoes(t *testing.T) {
	d, times := &disk{}, 0
	c, _ := collector(d, policy)
	c.cfg.Content = func(context.Context) error { times++; return nil }
	for i, f := range []func() error{
		func() error { _, err := c.Prune(t.Context(), time.Now(), true); return err },
		func() error { _, err := c.Prune(t.Context(), time.Now(), false); return err },
		func() error { return c.Collect(t.Context(), time.Now()) },
	} {
		if err := f(); err != nil || times != i {
			t.Errorf("%d: %v, %d times", i, err, times)
		}
	}
}

package eviction

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestConditionsOverARestart: one that holds goes on from when it was last seen, neither shorter nor longer.
func TestConditionsOverARestart(t *testing.T) {
	start := time.Unix(100000, 0)
	met := map[corev1.NodeConditionType]bool{corev1.NodeMemoryPressure: true}
	p := newPressure(5*time.Minute, nil, start)
	var kept Conditions
	look := func(met map[corev1.NodeConditionType]bool, after time.Duration) (changed bool) {
		at := start.Add(after)
		changed = p.update(met, at, &earliest{now: at})
		if p.worthKeeping() {
			kept = p.all()
		}
		return changed
	}
	look(nil, 0)
	if kept != nil {
		t.Errorf("a calm node is kept: %v", kept)
	}
	for s := range 62 {
		look(met, time.Duration(s)*time.Second)
	}
	if kept[0].Last != start.Add(time.Minute) || !kept[0].Status || kept[0].Since != start {
		t.Errorf("kept %+v", kept[0])
	}
	look(nil, 70*time.Second) // the end is kept at once
	if kept[0].Last != start.Add(61*time.Second) {
		t.Errorf("kept %+v", kept[0])
	}
	before := kept
	for _, c := range []struct {
		restart, then time.Duration
		want          string
	}{
		{2 * time.Minute, 2 * time.Minute, "true false"},
		{2 * time.Minute, 361 * time.Second, "true true"}, // five minutes from when it was last seen
		{2 * time.Minute, 360 * time.Second, "true false"},
		{7 * time.Minute, 7 * time.Minute, "false false"},
		{-time.Hour, -time.Hour, "true false"}, // the clock was set
	} {
		p = newPressure(5*time.Minute, before, start.Add(c.restart))
		if got := fmt.Sprint(p.all()[0].Status, " ", look(nil, c.then)); got != c.want {
			t.Errorf("started after %v, seen after %v: %s, want %s", c.restart, c.then, got, c.want)
		}
		if c.restart == 2*time.Minute && p.all()[0].Status && p.all()[0].Since != start {
			t.Errorf("it holds since %v", p.all()[0].Since)
		}
	}
}

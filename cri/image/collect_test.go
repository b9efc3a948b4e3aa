package image

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// TestPullWhileCollected has images pulled that share a layer while others remove them, and collect, all the time: an
// image that is there has all that it needs at every moment, and nothing is left that no image explains.
func TestPullWhileCollected(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.KeepPartial = 0 })
	w.collector.keepPartial = 0 // what a pull has not begun to use is nobody's at once
	var specs []imagetest.Spec
	for i := range 3 {
		specs = append(specs, imagetest.Spec{
			Name: fmt.Sprintf("shared%d:v1", i), Layers: []files{base, {{Name: "etc/a", Body: fmt.Sprint(i)}}},
		})
	}
	_, names := served(t, specs...)
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	wait.Go(func() {
		for ctx.Err() == nil {
			if err := w.Collect(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	wait.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if err := w.Remove(ctx, names[i%2]); err != nil && !errors.Is(err, ErrNotFound) && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	var pulls sync.WaitGroup
	for _, name := range names {
		pulls.Go(func() {
			for range 20 {
				if _, err := w.Pull(ctx, name, nil, nil); err != nil {
					t.Errorf("pull %s: %v", name, err)
					return
				}
			}
		})
	}
	pulls.Wait()
	cancel()
	wait.Wait()
	for i, name := range names {
		if got := w.show(t, mustPull(t, w, name), "etc/a"); got != fmt.Sprint(i) {
			t.Errorf("etc/a of %s is %q", name, got)
		}
	}
	for _, name := range names {
		if err := w.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := w.left(t); left != "" {
		t.Errorf("left:\n%s", left)
	}
}

// TestParts: images that have a layer in common have its key in common, and what one is made of is its size.
func TestParts(t *testing.T) {
	w := newWorld(t)
	other := imagetest.Spec{Name: "other:v1", Layers: []files{base, {{Name: "etc/c", Body: "three"}}}}
	_, names := served(t, twoLayers, other)
	shared := map[string]int{}
	for _, name := range names {
		img := mustPull(t, w, name)
		var sum int64
		for key, n := range w.Parts()[img.ID] {
			sum += n
			shared[key]++
		}
		if sum != img.Size || sum == 0 {
			t.Errorf("%s: parts have %d bytes, the image %d", name, sum, img.Size)
		}
	}
	twice := 0
	for _, n := range shared {
		if n == 2 {
			twice++
		}
	}
	if twice != 1 {
		t.Errorf("%d parts are shared: %v", twice, shared)
	}
}

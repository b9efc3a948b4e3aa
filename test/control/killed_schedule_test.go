//go:build linux && amd64

package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestScheduleKilled kills a server before changes that it makes where its snapshots are, while it writes them by
// itself. What has the name of one is whole at each, and the next server goes on with them and leaves no part.
func TestScheduleKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	snapshots := filepath.Join(dir, "snapshots")
	flags := []string{"--snapshot-interval=1s", "--snapshot-keep=2"}
	// changed writes until there is a snapshot that was not there, and not those any more that are too old.
	writes := 0
	changed := func(p *plane) {
		t.Helper()
		before := copies(t, snapshots)
		until(t, "another snapshot is written", func() error {
			writes++
			p.write(t, fmt.Sprint(writes))
			now := copies(t, snapshots)
			if len(now) == 0 || slices.Contains(before, now[len(now)-1]) || len(now) > 2 {
				return fmt.Errorf("there are %q", now)
			}
			return nil
		})
	}
	d := &debugger{of: below(snapshots)}
	p, count := startDebugged(t, d, dir, flags...)
	changed(p)
	changed(p)
	count()
	changed(p)
	p.kill()
	for _, last := range sample(t, d.n, 5) {
		d = &debugger{of: below(snapshots), last: last}
		p, count = startDebugged(t, d, dir, flags...)
		count()
		until(t, "the server is killed", func() error {
			writes++
			c := configMap("kept")
			c.Data["a"] = fmt.Sprint(writes) // what is as it was has no new version
			// It may be dead.
			_, _ = p.client.CoreV1().ConfigMaps(ns).Update(t.Context(), c, metav1.UpdateOptions{})
			select {
			case <-p.ended:
				return nil
			default:
				return errors.New("it runs")
			}
		})
		all := copies(t, snapshots)
		for _, path := range all {
			if err := wholeCopy(path); err != nil {
				t.Errorf("step %d: %s: %v", last, path, err)
			}
		}
		p = startAt(t, dir, "0", flags...)
		changed(p)
		p.stop(t)
		now, err := os.ReadDir(snapshots)
		if err != nil || len(now) != len(copies(t, snapshots)) || len(now) > 3 {
			t.Errorf("step %d: there is %v, %v", last, now, err)
		}
	}
}

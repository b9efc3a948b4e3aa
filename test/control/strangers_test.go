package control

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestLeftOutOfRestore restores one of three members, and starts the others with what they had. Neither log is filled
// with that, both say what to do, and so do commands on both; who does it is a member again.
func TestLeftOutOfRestore(t *testing.T) {
	t.Parallel()
	dirs := [3]string{t.TempDir(), t.TempDir(), t.TempDir()}
	at, all := three(t, dirs)
	all[0].write(t, "kept")
	file := snapshot(t, all[0])
	for _, m := range all {
		m.kill()
	}
	if out, err := restore(t.Context(), dirs[0], file); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all[0] = at[0].start(t, dirs[0])
	// Two are most of three: each needs the other to start.
	started := make(chan *plane)
	for i := 1; i < 3; i++ {
		go func() {
			var m *plane
			defer func() { started <- m }() // nil, where it has not started
			m = at[i].start(t, dirs[i])
		}()
	}
	old := []*plane{<-started, <-started}
	if slices.Contains(old, nil) {
		t.FailNow()
	}
	for m, want := range map[*plane]string{
		all[0]: "run there what berth-control token create --member prints here",
		old[0]: "run here what berth-control token create --member prints there",
	} {
		for _, command := range []string{"members", "status"} {
			until(t, "etcd "+command+" says what to do", func() error {
				out, err := control(t, m.dir, "etcd", command)
				if err == nil && !strings.Contains(out, want) {
					err = errors.New(out)
				}
				return err
			})
		}
		out := m.output.String()
		if !strings.Contains(out, want) {
			t.Errorf("the log does not say what to do:\n%s", out)
		}
		if n := strings.Count(out, "cluster ID mismatch"); n > 0 {
			t.Errorf("etcd has told of it %d times:\n%s", n, out)
		}
	}
	for i, m := range old {
		m.kill()
		if err := os.RemoveAll(m.dir); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			continue
		}
		of := at[1]
		if m.dir == dirs[2] {
			of = at[2]
		}
		again := of.start(t, of.join(t, all[0], m.dir))
		again.has(t, "kept")
	}
}

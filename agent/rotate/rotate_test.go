package rotate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// writer is a runtime with one container, which writes lines.
type writer struct {
	mu      sync.Mutex
	path    string
	file    *os.File
	lines   int
	opened  int // how often it was asked to open another file
	fresh   int // and has
	refuses error
}

func (w *writer) ReopenContainerLog(_ context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened++
	if r.GetContainerId() != "c" || w.refuses != nil {
		return nil, errors.Join(w.refuses, fmt.Errorf("container %q", r.GetContainerId()))
	}
	w.file.Close()
	var err error
	w.file, err = os.OpenFile(w.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	w.fresh++
	return &runtimeapi.ReopenContainerLogResponse{}, err
}

func (w *writer) write(t *testing.T, lines int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for range lines {
		if _, err := fmt.Fprintf(w.file, "line %06d\n", w.lines); err != nil {
			t.Fatal(err)
		}
		w.lines++
	}
}

// rotated says that the log was moved away so often, and that what is written now goes to the next file.
func (w *writer) rotated(times int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fresh == times
}

func newWriter(t *testing.T) *writer {
	t.Helper()
	w := &writer{path: filepath.Join(t.TempDir(), "0.log")}
	var err error
	if w.file, err = os.Create(w.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.file.Close() })
	return w
}

func run(t *testing.T, w *writer, size int64, files int) (*Rotator, func()) {
	t.Helper()
	r := New(Config{Runtime: w, MaxSize: size, MaxFiles: files, Period: 20 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	if err := r.Set(ctx, "pod", []Log{{"c", w.path}}); err != nil {
		t.Fatal(err)
	}
	return r, stop
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s", what)
		}
	}
}

func names(t *testing.T, path string) []string {
	t.Helper()
	out, err := filepath.Glob(path + ".*")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRotates(t *testing.T) {
	w := newWriter(t)
	_, stop := run(t, w, 1200, 20)
	w.write(t, 50) // 600 bytes stay
	for n := 1; n <= 3; n++ {
		w.write(t, 100)
		eventually(t, "another file", func() bool { return w.rotated(n) })
	}
	stop()
	if got := names(t, w.path); len(got) != 3 {
		t.Errorf("the files before are %q", got)
	}
	var all strings.Builder
	for _, f := range append(names(t, w.path), w.path) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	if got := strings.Count(all.String(), "\n"); got != w.lines || !strings.HasPrefix(all.String(), "line 000000\n") || !strings.HasSuffix(all.String(), fmt.Sprintf("line %06d\n", w.lines-1)) {
		t.Errorf("%d lines of %d in\n%s", got, w.lines, all.String())
	}
}

func TestKeepsFiles(t *testing.T) {
	w := newWriter(t)
	run(t, w, 120, 3)
	for n := 1; n <= 5; n++ {
		w.write(t, 10)
		eventually(t, "a rotation", func() bool { return w.rotated(n) })
	}
	eventually(t, "the newest two to be kept", func() bool {
		kept := names(t, w.path)
		if len(kept) != 2 {
			return false
		}
		b, err := os.ReadFile(kept[0])
		return err == nil && strings.HasPrefix(string(b), "line 000030\n")
	})
}

// What was killed after it had moved the log, and before the runtime opened a new one.
func TestEndsWhatWasBegun(t *testing.T) {
	w := newWriter(t)
	w.write(t, 10)
	if _, err := moveAway(w.path, time.Now()); err != nil {
		t.Fatal(err)
	}
	run(t, w, 1200, 3)
	eventually(t, "the log to be there again", func() bool { _, err := os.Stat(w.path); return err == nil })
	w.write(t, 1)
	if b, err := os.ReadFile(w.path); err != nil || string(b) != "line 000010\n" {
		t.Errorf("the new log has %q, %v", b, err)
	}
}

func TestRuntimeRefuses(t *testing.T) {
	w := newWriter(t)
	w.refuses = errors.New("it is not running")
	run(t, w, 120, 3)
	w.write(t, 10)
	eventually(t, "two tries", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.opened >= 2 })
	w.mu.Lock()
	w.refuses = nil
	w.mu.Unlock()
	// Until the runtime has opened another file, the one that was moved away may be moved back.
	eventually(t, "the rotation", func() bool { return w.rotated(1) })
	b, err := os.ReadFile(names(t, w.path)[0])
	if err != nil || strings.Count(string(b), "\n") != 10 {
		t.Errorf("rotated: %q, %v", b, err)
	}
}

// A log that nobody writes is not looked at, and one that is taken back neither.
func TestIdle(t *testing.T) {
	w := newWriter(t)
	r, stop := run(t, w, 120, 3)
	l := &looker{Rotator: r, logs: map[string]map[string]*watched{}}
	writes, err := newWrites()
	if err != nil {
		t.Fatal(err)
	}
	defer writes.close()
	l.writes = writes
	l.take(set{"pod", []Log{{"c", w.path}}})
	one := l.logs["pod"]["c"]
	l.look(t.Context(), one)
	if at := l.next(); !at.IsZero() {
		t.Errorf("an idle log is looked at in %s", time.Until(at))
	}
	w.write(t, 1)
	if got := <-writes.told(); got != one {
		t.Errorf("told of %v", got)
	}
	if l.written(one); one.due.IsZero() {
		t.Error("a log that is written is not looked at")
	}
	if err := r.Set(t.Context(), "pod", nil); err != nil {
		t.Fatal(err)
	}
	w.write(t, 20)
	stop()
	if got := names(t, w.path); len(got) != 0 {
		t.Errorf("rotated after its end: %q", got)
	}
}

func TestMoveAwayTwiceASecond(t *testing.T) {
	dir, now := t.TempDir(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for _, want := range []string{"0.log.20261121-100000", "0.log.20261121-100000-000001", "0.log.20261121-100000-000002"} {
		if err := os.WriteFile(filepath.Join(dir, "0.log"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := moveAway(filepath.Join(dir, "0.log"), now); err != nil || filepath.Base(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

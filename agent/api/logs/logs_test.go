package logs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func stamp(i int) string {
	return time.Date(2026, 1, 2, 3, 4, i, 5000, time.UTC).Format(time.RFC3339Nano)
}

// logFile writes a log of lines and returns its path. A line that ends in \ is cut there, and one that begins with ! is
// stderr.
func logFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, 0, lines...)
	return path
}

func write(t *testing.T, path string, from int, lines ...string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, l := range lines {
		tag, stream := "F", "stdout"
		if s, ok := strings.CutSuffix(l, `\`); ok {
			tag, l = "P", s
		}
		if s, ok := strings.CutPrefix(l, "!"); ok {
			stream, l = "stderr", s
		}
		fmt.Fprintf(f, "%s %s %s %s\n", stamp(from+i), stream, tag, l)
	}
}

func read(t *testing.T, path string, o Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := Read(t.Context(), path, o, &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestRead(t *testing.T) {
	path := logFile(t, "one", "!two", `thr\`, "ee", "", "five words and more")
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"all":             {Options{Tail: -1}, "one\ntwo\nthree\n\nfive words and more\n"},
		"none":            {Options{Tail: 0}, ""},
		"tail 1":          {Options{Tail: 1}, "five words and more\n"},
		"tail 3":          {Options{Tail: 3}, "three\n\nfive words and more\n"},
		"tail too much":   {Options{Tail: 100}, "one\ntwo\nthree\n\nfive words and more\n"},
		"since":           {Options{Tail: -1, Since: time.Date(2026, 1, 2, 3, 4, 4, 0, time.UTC)}, "\nfive words and more\n"},
		"limit":           {Options{Tail: -1, Limit: 6}, "one\ntw"},
		"limit at an end": {Options{Tail: -1, Limit: 4}, "one\n"},
		"stdout":          {Options{Tail: 4, Stream: "stdout"}, "three\n\nfive words and more\n"},
		"stderr":          {Options{Tail: -1, Stream: "stderr"}, "two\n"},
		"timestamps": {Options{Tail: 3, Timestamps: true}, stamp(2) + " three\n" + stamp(4) + " \n" + stamp(5) +
			" five words and more\n"},
	} {
		if got := read(t, path, c.o); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestNoLogYet(t *testing.T) {
	if got := read(t, filepath.Join(t.TempDir(), "0.log"), Options{Tail: 5}); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestUnfinishedLastLine(t *testing.T) {
	path := logFile(t, "one", `two\`)
	if got := read(t, path, Options{Tail: 1}); got != "two" {
		t.Errorf("got %q", got)
	}
	f, _ := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	io.WriteString(f, stamp(3)+" stdout F being writ")
	f.Close()
	if got := read(t, path, Options{Tail: -1}); got != "one\ntwo" {
		t.Errorf("got %q", got)
	}
}

func TestRotatedFilesAreOneStream(t *testing.T) {
	path := logFile(t, "five", "six")
	write(t, path+".20260102-030401", 0, "one", "two")
	write(t, path+".20260102-030402", 2, "three", `fo\`)
	write(t, path+".20260102-030400.gz", 2, "not ours")
	b, _ := os.ReadFile(path)
	os.WriteFile(path, append([]byte(stamp(4)+" stdout F ur\n"), b...), 0o600)
	if got := read(t, path, Options{Tail: -1}); got != "one\ntwo\nthree\nfour\nfive\nsix\n" {
		t.Errorf("got %q", got)
	}
	if got := read(t, path, Options{Tail: 3}); got != "four\nfive\nsix\n" {
		t.Errorf("tail: got %q", got)
	}
	if got := read(t, path, Options{Tail: 4}); got != "three\nfour\nfive\nsix\n" {
		t.Errorf("tail: got %q", got)
	}
}

// TestTailOfLongFile has lines of every length lie across the blocks that are read from the end.
func TestTailOfLongFile(t *testing.T) {
	var lines []string
	for i := range 3000 {
		lines = append(lines, fmt.Sprintf("%d %s", i, strings.Repeat("x", i%300)))
	}
	path := logFile(t, lines...)
	for _, n := range []int{1, 2, 100, 1234, 2999, 3000, 3001} {
		want := strings.Join(lines[max(0, 3000-n):], "\n") + "\n"
		if got := read(t, path, Options{Tail: int64(n)}); got != want {
			t.Errorf("tail %d: got %d bytes, want %d", n, len(got), len(want))
		}
	}
}

// out is a writer that tells when it has got so many lines.
type out struct {
	mu sync.Mutex
	b  bytes.Buffer
	c  chan struct{}
}

func (o *out) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.c <- struct{}{}:
	default:
	}
	return o.b.Write(p)
}

func (o *out) wait(ctx context.Context, want string) error {
	for {
		o.mu.Lock()
		got := o.b.String()
		o.mu.Unlock()
		if got == want {
			return nil
		}
		select {
		case <-o.c:
		case <-ctx.Done():
			return fmt.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan struct{})
	o := &out{c: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() { done <- Read(ctx, path, Options{Tail: -1, Ended: ended}, o) }()
	step := func(want string) {
		t.Helper()
		if err := o.wait(ctx, want); err != nil {
			t.Fatal(err)
		}
	}
	write(t, path, 0, "one")
	step("one\n")
	write(t, path, 1, "two", `thr\`)
	step("one\ntwo\nthr")
	// A rotation in the middle of a line, and another before the reader can have looked.
	os.Rename(path, path+".20260102-030401")
	write(t, path, 3, "ee")
	os.Rename(path, path+".20260102-030402")
	write(t, path, 4, "four")
	step("one\ntwo\nthree\nfour\n")
	// The files before are thrown away while the current one is read.
	os.Rename(path, path+".20260102-030403")
	write(t, path, 5, "five")
	os.Remove(path + ".20260102-030401")
	os.Remove(path + ".20260102-030402")
	step("one\ntwo\nthree\nfour\nfive\n")
	write(t, path, 6, "last")
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	step("one\ntwo\nthree\nfour\nfive\nlast\n")
}

// TestFollowFastWriter rotates as fast as it can: with nothing thrown away, no line may be missing, doubled or out of
// order.
func TestFollowFastWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	ended := make(chan struct{})
	var b bytes.Buffer
	done := make(chan error, 1)
	go func() { done <- Read(t.Context(), path, Options{Tail: -1, Ended: ended}, &b) }()
	var want strings.Builder
	for i := range 2000 {
		write(t, path, 0, fmt.Sprint(i))
		fmt.Fprintln(&want, i)
		if i%7 == 0 {
			os.Rename(path, fmt.Sprintf("%s.%06d", path, i))
		}
	}
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if b.String() != want.String() {
		t.Errorf("got %d bytes, want %d", b.Len(), want.Len())
	}
}

func TestFollowIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	path := logFile(t, "one")
	o := &out{c: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() { done <- Read(ctx, path, Options{Tail: -1, Ended: make(chan struct{})}, o) }()
	<-o.c
	cancel()
	if err := <-done; err == nil {
		t.Error("no error")
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("2026-01-02T03:04:05Z stdout F text\n2026-01-02T03:04:05Z stderr P \n\nx\n"), int64(1))
	f.Add([]byte("2026-01-02T03:04:05Z stdout F:x\n"), int64(-1))
	f.Fuzz(func(t *testing.T, b []byte, n int64) {
		path := filepath.Join(t.TempDir(), "0.log")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var all, some bytes.Buffer
		if err := Read(t.Context(), path, Options{Tail: -1}, &all); err != nil {
			t.Fatal(err)
		}
		if err := Read(t.Context(), path, Options{Tail: n}, &some); err != nil {
			t.Fatal(err)
		}
		if !bytes.HasSuffix(all.Bytes(), some.Bytes()) {
			t.Errorf("tail %d gives %q, which is not the end of %q", n, some.String(), all.String())
		}
	})
}

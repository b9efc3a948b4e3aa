package audit

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
)

// sink is a backend that hangs until it is opened, if it is shut.
type sink struct {
	shut chan struct{}
	got  atomic.Int64
}

func (s *sink) ProcessEvents(events ...*auditapi.Event) bool {
	if s.shut != nil {
		<-s.shut
	}
	s.got.Add(int64(len(events)))
	return true
}

func (s *sink) Run(<-chan struct{}) error { return nil }
func (s *sink) Shutdown()                 {}
func (s *sink) String() string            { return "sink" }

func event(size int) *auditapi.Event {
	return &auditapi.Event{RequestObject: &runtime.Unknown{Raw: make([]byte, size)}}
}

// TestLogHangs has a disk hang: one request waits, the others do not, what waits is bounded, and nothing of it is lost
// when the disk comes back.
func TestLogHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{shut: make(chan struct{})}
		b := newLogBackend(s, patience, lastWait, slog.New(slog.DiscardHandler))
		if err := b.Run(nil); err != nil {
			t.Fatal(err)
		}
		defer close(b.queue)
		begin := time.Now()
		for range 100 {
			if !b.ProcessEvents(event(1 << 20)) {
				t.Fatal("a request is refused")
			}
		}
		if took := time.Since(begin); took != patience {
			t.Errorf("requests have waited %s", took)
		}
		if held := b.held.bytes.Load(); held > mostBytes {
			t.Errorf("%d bytes wait", held)
		}
		waiting := b.held.events.Load()
		begin = time.Now()
		b.Shutdown()
		if took := time.Since(begin); took != lastWait {
			t.Errorf("the end has waited %s", took)
		}
		close(s.shut)
		synctest.Wait()
		if got := s.got.Load(); got != waiting || waiting < 50 || b.held.events.Load()+b.held.bytes.Load() != 0 {
			t.Errorf("%d of %d are written, %d wait", got, waiting, b.held.events.Load())
		}
		begin = time.Now()
		b.ProcessEvents(event(1))
		b.Shutdown()
		if took := time.Since(begin); took != 0 || s.got.Load() != waiting+1 {
			t.Errorf("afterwards: %s, %d", took, s.got.Load())
		}
	})
}

// TestWebhookHangs has a receiver hang: nobody waits, what waits is bounded, and the end comes.
func TestWebhookHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{shut: make(chan struct{})}
		b := newWebhookBackend(s, lastWait, slog.New(slog.DiscardHandler))
		stop := make(chan struct{})
		if err := b.Run(stop); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for range 2 * mostEvents {
			if !b.ProcessEvents(event(1)) {
				t.Fatal("a request is refused")
			}
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("requests have waited %s", took)
		}
		time.Sleep(time.Hour)
		b.ProcessEvents(event(1))
		if held := b.held.events.Load(); held != mostEvents {
			t.Errorf("%d events wait", held)
		}
		close(stop)
		begin = time.Now()
		b.Shutdown()
		if took := time.Since(begin); took != lastWait {
			t.Errorf("the end has waited %s", took)
		}
		close(s.shut)
		synctest.Wait()
		if got := s.got.Load(); got != mostEvents || b.held.events.Load()+b.held.bytes.Load() != 0 {
			t.Errorf("%d are sent, %d wait", got, b.held.events.Load())
		}
	})
}

// full is a disk with so much room.
type full struct {
	bytes.Buffer
	room int
}

func (f *full) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	f.room -= n
	f.Buffer.Write(p[:n])
	if n < len(p) {
		return n, errors.New("no space left")
	}
	return n, nil
}

// TestLinesAreWhole fills a disk within a line, and makes room again.
func TestLinesAreWhole(t *testing.T) {
	f := &full{room: 8}
	l := &lines{out: f}
	for _, c := range []struct {
		line string
		room int
		good bool
	}{{"one\n", 0, true}, {"two and more\n", 0, false}, {"three\n", 0, false}, {"four\n", 1, false}, {"five\n", 10, true}} {
		f.room += c.room
		if _, err := l.Write([]byte(c.line)); (err == nil) != c.good {
			t.Errorf("%q: %v", c.line, err)
		}
	}
	if got := f.String(); got != "one\ntwo \nfive\n" {
		t.Errorf("%q", got)
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	for text, want := range map[string]string{"": "new\n", "old\n": "old\nnew\n", "to": "to\nnew\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{0, 1} {
			out, err := openLog(Options{LogPath: path, LogMaxSize: size})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := out.Write([]byte("new\n")); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Errorf("%q and size %d: %q, %v", text, size, got, err)
			}
			want += "new\n"
		}
	}
}

// TestOptions has flags that lack others.
func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"":                                      {LogFormat: "json"},
		"--audit-log-path needs --audit-policy": {LogPath: "-", LogFormat: "json"},
		"--audit-webhook-config-file needs --audit-policy": {Webhook: "x"},
		"--audit-policy-file needs --audit-log-path or":    {Policy: "x"},
		`--audit-log-format "xml"`:                         {Policy: "x", LogPath: "-", LogFormat: "xml"},
		"--audit-log-maxsize -1":                           {Policy: "x", LogPath: "-", LogFormat: "json", LogMaxSize: -1},
		"read audit policy /nowhere: open":                 {Policy: "/nowhere", LogPath: "-", LogFormat: "json"},
	} {
		_, err := New(o, slog.New(slog.DiscardHandler))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

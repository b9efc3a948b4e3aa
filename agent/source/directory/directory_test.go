package directory

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// told writes down what it is told.
type told struct{ lines []string }

func (f *told) add(format string, args ...any) {
	f.lines = append(f.lines, fmt.Sprintf(format, args...))
}

func (f *told) Content(name string, data []byte, exposed error) {
	f.add("%s has %s, exposed %t", name, data, exposed != nil)
}
func (f *told) Unreadable(name string, err error) { f.add("%s: %v", name, err) }
func (f *told) Missing(name string)               { f.add("%s is missing", name) }
func (f *told) Removed(name string)               { f.add("%s is removed", name) }

func (f *told) Directory(err error) {
	if err != nil {
		f.add("directory %v", err)
	}
}

// watched is a directory that is watched until the test ends.
func watched(t *testing.T) (*Directory, *told) {
	t.Helper()
	f := &told{}
	d := New(Config{Dir: t.TempDir(), Files: f, Log: slog.New(slog.DiscardHandler)})
	if err := d.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	d.Begin()
	return d, f
}

// until drives the directory until a line was told.
func (f *told) until(t *testing.T, d *Directory, line string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		d.Settle(time.Now())
		if d.Waiting() {
			d.Next()
		}
		if slices.Contains(f.lines, line) {
			break
		}
		if d.Waiting() {
			continue
		}
		select {
		case <-late:
			t.Fatalf("never %q: %q", line, f.lines)
		case data := <-d.Changes():
			d.Handle(data)
		case <-time.After(d.Due(time.Now())):
		}
	}
	f.lines = nil
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestTold(t *testing.T) {
	d, f := watched(t)
	path := filepath.Join(d.cfg.Dir, "a.yaml")
	write(t, path, "one", 0o600)
	f.until(t, d, "a.yaml has one, exposed false")
	write(t, path, "two", 0o600)
	f.until(t, d, "a.yaml has two, exposed false")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	f.until(t, d, "a.yaml has two, exposed true")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.until(t, d, "a.yaml is removed")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	f.until(t, d, "a.yaml: is a directory: manifests in it are not read")
	if !d.Read() || d.Missed() != 0 {
		t.Errorf("read %t, missed %d", d.Read(), d.Missed())
	}
}

// TestWriterWhoNeverEnds: what is said of a file that somebody has open is taken back when the file goes, though it was
// never read.
func TestWriterWhoNeverEnds(t *testing.T) {
	d, f := watched(t)
	path := filepath.Join(d.cfg.Dir, "a.yaml")
	w, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	d.busy["a.yaml"] = busy{since: time.Now().Add(-busyTold), wait: busyMost}
	f.until(t, d, "a.yaml: not read: another process has it open for writing")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.until(t, d, "a.yaml is removed")
}

// TestQuietAfter: only a file that was renamed, as an editor does with the old one, is waited for as long as editors
// take. One that was removed is gone sooner: how soon its pod begins to go is up to that.
func TestQuietAfter(t *testing.T) {
	c := &Config{}
	if removed, renamed := c.quietAfter(unix.IN_DELETE), c.quietAfter(unix.IN_MOVED_FROM); removed > 5*time.Millisecond || removed >= renamed {
		t.Errorf("a removed file is waited for %s, a renamed one %s", removed, renamed)
	}
}

package keeper_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

func TestLogIsInTheCRIFormat(t *testing.T) {
	p := newPod(t)
	for range 20 { // it may end before its launcher does, who has the pipes too
		id, _ := p.sh("echo one; echo two >&2; echo; printf three")
		p.exit(id)
		got := p.log(id)
		slices.Sort(got)
		want := []string{"stderr F two", "stdout F ", "stdout F one", "stdout P three"}
		if !slices.Equal(got, want) {
			t.Errorf("log is %q, want %q", got, want)
		}
	}
}

func TestLogSplitsLongLines(t *testing.T) {
	p := newPod(t)
	for _, n := range []int{1, 16383, 16384, 16385, 3 * 16384, 100000} {
		id, _ := p.sh(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo; echo end", n))
		p.exit(id)
		var line strings.Builder
		parts := p.log(id)
		for i, l := range parts[:len(parts)-1] {
			kind, content := l[:len("stdout F ")], l[len("stdout F "):]
			last := i == len(parts)-2
			if want := map[bool]string{true: "stdout F ", false: "stdout P "}[last]; kind != want {
				t.Errorf("%d bytes: part %d begins with %q", n, i, kind)
			}
			if len(content) > 16384 || !last && len(content) != 16384 {
				t.Errorf("%d bytes: part %d has %d", n, i, len(content))
			}
			line.WriteString(content)
		}
		if line.String() != strings.Repeat("x", n) || parts[len(parts)-1] != "stdout F end" {
			t.Errorf("%d bytes: log has %d of them, and ends with %q", n, line.Len(), parts[len(parts)-1])
		}
	}
}

// TestLogRotatesUnderAFastWriter checks that no line is lost or torn as long
// as its file is kept, that files stay under the limit, and their number too.
func TestLogRotatesUnderAFastWriter(t *testing.T) {
	p := newPod(t)
	for _, tc := range []struct {
		lines, files int
		max          int64
		all          bool
	}{
		{20000, 1000, 100_000, true},
		{200000, 3, 1_000_000, false},
		{100, 5, 10, false}, // a limit under a line's length
	} {
		c := p.container(p.spec("c", "/bin/sh", "-c", fmt.Sprintf("seq 1 %d", tc.lines)))
		c.LogMaxSize, c.LogMaxFiles = tc.max, tc.files
		if _, err := p.Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		p.exit(c.ID)
		logs, err := filepath.Glob(c.LogPath + "*")
		if err != nil || len(logs) > tc.files {
			t.Fatalf("%d files are kept, of %d: %v, %v", len(logs), tc.files, logs[:min(5, len(logs))], err)
		}
		slices.Sort(logs) // the current one has no suffix
		logs = append(logs[1:], logs[0])
		var numbers []int
		for _, f := range logs {
			st, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			if st.Size() > max(tc.max, 60) {
				t.Errorf("%s has %d bytes", f, st.Size())
			}
			numbers = append(numbers, readNumbers(t, f)...)
		}
		if last := numbers[len(numbers)-1]; last != tc.lines {
			t.Errorf("last line is %d of %d", last, tc.lines)
		}
		for i := 1; i < len(numbers); i++ {
			if numbers[i] != numbers[i-1]+1 {
				t.Fatalf("after line %d comes %d", numbers[i-1], numbers[i])
			}
		}
		if tc.all && numbers[0] != 1 {
			t.Errorf("first line is %d", numbers[0])
		}
	}
}

func readNumbers(t *testing.T, file string) []int {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var numbers []int
	for s := bufio.NewScanner(f); s.Scan(); {
		var stamp string
		var n int
		if _, err := fmt.Sscanf(s.Text(), "%s stdout F %d", &stamp, &n); err != nil {
			t.Fatalf("%s: line %q: %v", file, s.Text(), err)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

func TestLogIsReopened(t *testing.T) {
	p := newPod(t)
	c := p.container(p.spec("c", "/bin/sh", "-c", "echo one; read x; echo two"))
	c.Stdin = true
	if _, err := p.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { b, _ := os.ReadFile(c.LogPath); return len(b) > 0 })
	if err := os.Rename(c.LogPath, c.LogPath+".old"); err != nil {
		t.Fatal(err)
	}
	if err := p.ReopenLog(c.ID); err != nil {
		t.Fatal(err)
	}
	s, err := p.Attach(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Stdin.Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	p.exit(c.ID)
	if l := p.log(c.ID); !slices.Equal(l, []string{"stdout F two"}) {
		t.Errorf("new log is %q", l)
	}
}

// TestFullDiskDoesNotStopAContainer logs to a file system of 64 KiB.
func TestFullDiskDoesNotStopAContainer(t *testing.T) {
	p := newPod(t)
	disk := filepath.Join(p.dir, "disk")
	mountTmpfs(t, disk, "size=64k")
	c := p.container(p.spec("c", "/bin/sh", "-c", "read x; seq 1 100000; read x; echo last"))
	c.LogPath, c.Stdin = filepath.Join(disk, "log"), true
	if _, err := p.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	s, err := p.Attach(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// Not before: who attaches is told of nothing that has been written by then.
	if _, err := s.Stdin.Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(s.Stdout)
	for lines.Scan() && lines.Text() != "100000" {
	}
	b, err := os.ReadFile(c.LogPath)
	if err != nil || len(b) == 0 || b[len(b)-1] != '\n' {
		t.Errorf("log of %d bytes ends in the middle of a line, %v", len(b), err)
	}
	// Somebody makes room.
	if err := os.Truncate(c.LogPath, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stdin.Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	p.exit(c.ID)
	b, err = os.ReadFile(c.LogPath)
	if err != nil || !strings.Contains(string(b), "lines were lost") || !strings.HasSuffix(string(b), " stdout F last\n") {
		t.Errorf("log is %q, %v", b, err)
	}
}

func TestRunNeedsItsLog(t *testing.T) {
	p := newPod(t)
	c := p.container(p.spec("c", "/bin/true"))
	c.LogPath = filepath.Join(p.dir, "nowhere", "log")
	if _, err := p.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "open log") {
		t.Errorf("error is %v", err)
	}
	states, err := keeper.ReadStates(p.Dir())
	if err != nil || len(states) != 1 || states[0].Phase != "failed" || !strings.Contains(states[0].Error, "open log") {
		t.Errorf("records are %+v, %v", states, err)
	}
}

// TestLogIsAFile has somebody put other things where logs are to be: a FIFO that nobody reads keeps the keeper from
// nothing, and what is written does not get to where a link or a FIFO leads.
func TestLogIsAFile(t *testing.T) {
	p := newPod(t)
	patient, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for name, put := range map[string]func(path string) error{
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":      func(path string) error { return os.Symlink(filepath.Join(p.dir, "elsewhere"), path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"device":    func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))) },
	} {
		c := p.container(p.spec(name, "/bin/echo", "text"))
		if err := put(c.LogPath); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Run(patient, c); err == nil || !strings.Contains(err.Error(), "open log") {
			t.Fatalf("%s: error is %v", name, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(p.dir, "elsewhere")); err == nil {
		t.Error("a log was made where a link leads")
	}
	// One that is put there later loses what is written, and nothing else.
	c := p.container(p.spec("later", "/bin/sh", "-c", "read x; echo two"))
	c.Stdin = true
	if _, err := p.Run(patient, c); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(c.LogPath), unix.Mkfifo(c.LogPath, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := p.ReopenLog(c.ID); err == nil {
		t.Error("a FIFO was opened as a log")
	}
	s, err := p.Attach(patient, c.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Stdin.Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	p.exit(c.ID)
}

package keeper_test

import (
	"bufio"
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/cri/keeper"
)

// interactive runs a container that has stdin.
func (p *pod) interactive(once, tty bool, script string) string {
	p.t.Helper()
	spec := p.spec("c", "/bin/sh", "-c", script)
	spec.Process.Terminal = tty
	c := p.container(spec)
	c.Stdin, c.StdinOnce = true, once
	if _, err := p.Run(p.t.Context(), c); err != nil {
		p.t.Fatal(err)
	}
	return c.ID
}

func (p *pod) attach(id string) *keeper.Stream {
	p.t.Helper()
	s, err := p.Attach(p.t.Context(), id)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { s.Close() })
	return s
}

func say(t *testing.T, s *keeper.Stream, text string) {
	t.Helper()
	if _, err := io.WriteString(s.Stdin, text); err != nil {
		t.Fatal(err)
	}
}

func TestAttachCarriesAllStreams(t *testing.T) {
	p := newPod(t)
	id := p.interactive(false, false, "read x; echo out $x; echo err $x >&2")
	s := p.attach(id)
	say(t, s, "word\n")
	done := make(chan []byte)
	go func() { b, _ := io.ReadAll(s.Stderr); done <- b }()
	out, err := io.ReadAll(s.Stdout)
	if err != nil || string(out) != "out word\n" {
		t.Errorf("stdout is %q, %v", out, err)
	}
	if b := <-done; string(b) != "err word\n" {
		t.Errorf("stderr is %q", b)
	}
	p.exit(id)
	if _, err := p.Attach(t.Context(), id); err == nil {
		t.Error("attached to a container that has ended")
	}
}

func TestStdinStaysOpenBetweenAttachers(t *testing.T) {
	p := newPod(t)
	id := p.interactive(false, false, "while read x; do echo got $x; done; echo end")
	for _, word := range []string{"one", "two"} {
		s := p.attach(id)
		say(t, s, word+"\n")
		if l, err := bufio.NewReader(s.Stdout).ReadString('\n'); l != "got "+word+"\n" {
			t.Fatalf("answer is %q, %v", l, err)
		}
		s.Close()
	}
}

func TestStdinOnceEndsWithTheFirstAttacher(t *testing.T) {
	for name, end := range map[string]func(*keeper.Stream){
		"detached": func(s *keeper.Stream) { s.Close() },
		"closed":   func(s *keeper.Stream) { s.Stdin.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			id := p.interactive(true, false, "cat; exit 9")
			s := p.attach(id)
			say(t, s, "text")
			end(s)
			if e := p.exit(id); e.Code != 9 {
				t.Errorf("ended with %+v", e)
			}
			if l := p.log(id); len(l) != 1 || l[0] != "stdout P text" {
				t.Errorf("log is %q", l)
			}
		})
	}
}

func TestAttachToATerminal(t *testing.T) {
	p := newPod(t)
	id := p.interactive(false, true, "tty; read x; stty size; echo got $x; exit 5")
	s := p.attach(id)
	if err := s.Resize(90, 30); err != nil {
		t.Fatal(err)
	}
	say(t, s, "word\n")
	out, _ := io.ReadAll(s.Stdout)
	if !strings.Contains(string(out), "30 90\r\n") || !strings.Contains(string(out), "got word\r\n") {
		t.Errorf("terminal shows %q", out)
	}
	if e := p.exit(id); e.Code != 5 {
		t.Errorf("ended with %+v", e)
	}
	if l := p.log(id); len(l) == 0 || l[len(l)-1] != "stdout F got word\r" {
		t.Errorf("log is %q", l)
	}
	id = p.interactive(false, true, "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.01; done")
	s = p.attach(id)
	eventually(t, func() bool { return len(p.log(id)) > 0 })
	if err := p.Resize(id, 70, 20); err != nil {
		t.Fatal(err)
	}
	if out, _ := io.ReadAll(s.Stdout); !strings.Contains(string(out), "20 70") {
		t.Errorf("terminal shows %q", out)
	}
}

// TestLargeInputArrivesWhole writes more than any buffer on the way holds, and
// leaves at once.
func TestLargeInputArrivesWhole(t *testing.T) {
	p := newPod(t)
	id := p.interactive(true, false, "sleep 0.2; wc -c")
	s := p.attach(id)
	if n, err := s.Stdin.Write(bytes.Repeat([]byte("x"), 3_000_000)); err != nil || n != 3_000_000 {
		t.Fatal(n, err)
	}
	s.Close()
	p.exit(id)
	if l := p.log(id); len(l) != 1 || l[0] != "stdout F 3000000" {
		t.Errorf("log is %q", l)
	}
}

// TestSlowAttacherIsCutOff attaches two, of which one never reads.
func TestSlowAttacherIsCutOff(t *testing.T) {
	p := newPod(t)
	id := p.interactive(false, false, "i=0; while [ $i -lt 30 ]; do read x; head -c 1000000 /dev/zero; i=$((i+1)); done")
	slow, quick := p.attach(id), p.attach(id)
	// The quick one asks for more when it has read all there is: it never is behind, however busy the machine is.
	for range 30 {
		say(t, quick, "\n")
		if n, err := io.CopyN(io.Discard, quick.Stdout, 1_000_000); err != nil {
			t.Fatalf("quick attacher got %d bytes, %v", n, err)
		}
	}
	if e := p.exit(id); e.Code != 0 {
		t.Errorf("ended with %+v", e)
	}
	if n, _ := io.Copy(io.Discard, slow.Stdout); n >= 30_000_000 {
		t.Error("slow attacher got everything")
	}
}

func TestInputWithoutAReaderIsDropped(t *testing.T) {
	p := newPod(t)
	id := p.interactive(false, false, "exec <&-; while ! [ -e /tmp/go ]; do usleep 10000; done; echo end")
	s := p.attach(id)
	_, _ = s.Stdin.Write(bytes.Repeat([]byte("x"), 1_000_000))
	write(t, filepath.Join(p.rootfs, "tmp/go"), "", 0o644)
	if out, _ := io.ReadAll(s.Stdout); string(out) != "end\n" {
		t.Errorf("stdout is %q", out)
	}
	p.exit(id)
}

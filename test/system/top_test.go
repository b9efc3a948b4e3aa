package system

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo terminal with a program in it.
type terminal struct {
	master, slave *os.File
	cmd           *exec.Cmd
	exited        chan error
	before        unix.Termios // what the terminal was before the program
	width, height uint16       // what the test last asked for

	mu   sync.Mutex
	text bytes.Buffer
}

// openTerminal starts a program that has the terminal for its own, as a login shell has.
func openTerminal(t *testing.T, width, height uint16, name string, args ...string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs pseudo terminals: %v", err)
	}
	term := &terminal{master: master, exited: make(chan error, 1)}
	var number int
	term.control(t, master, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	})
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term.slave = slave
	term.width, term.height = width, height
	term.resize(t, width, height)
	term.before = term.modes(t)
	term.cmd = exec.Command(name, args...)
	term.cmd.Env = append(os.Environ(), "TERM=xterm-256color")
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { term.exited <- term.cmd.Wait() }()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			term.mu.Lock()
			term.text.Write(buf[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill()
		slave.Close()
		master.Close()
	})
	return term
}

// control does something to the descriptor without making its reads block, as asking for its number does.
func (term *terminal) control(t *testing.T, f *os.File, do func(fd int) error) {
	t.Helper()
	conn, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var derr error
	if err := conn.Control(func(fd uintptr) { derr = do(int(fd)) }); err != nil || derr != nil {
		t.Fatal(err, derr)
	}
}

func (term *terminal) resize(t *testing.T, width, height uint16) {
	t.Helper()
	term.control(t, term.master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})
	})
}

func (term *terminal) press(t *testing.T, keys string) {
	t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// take is what was written since it was last asked.
func (term *terminal) take() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	defer term.text.Reset()
	return term.text.String()
}

// shows waits until all words have been written. A program writes what differs from what it wrote before, which of a
// word may be its end alone; it writes all of them again where the terminal changes its size.
func (n *Node) shows(term *terminal, words ...string) string {
	n.t.Helper()
	var all string
	looks := 0
	n.eventually(fmt.Sprintf("the terminal to show %q", words), func() error {
		all += term.take()
		for _, w := range words {
			if !strings.Contains(all, w) {
				if looks++; looks%50 == 0 {
					term.resize(n.t, term.width+uint16(looks/50%2), term.height)
				}
				return fmt.Errorf("no %q in %q", w, all[max(0, len(all)-10_000):])
			}
		}
		return nil
	})
	return all
}

func (term *terminal) modes(t *testing.T) unix.Termios {
	t.Helper()
	var m *unix.Termios
	term.control(t, term.slave, func(fd int) (err error) {
		m, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	return *m
}

// TestTop uses top as a person does, and as a script.
func TestTop(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("load.yaml", load)
	n.waitReady("load")
	args := []string{"--run-dir=" + n.Dir + "/run", "cgroups", "top", "--interval=100ms"}
	const red, alternate, back, cursor = "\x1b[31m", "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
	for _, c := range []struct {
		name string
		end  func(*terminal)
	}{
		{"q", func(term *terminal) { term.press(t, "q") }},
		{"control-C", func(term *terminal) { term.press(t, "\x03") }},
		{"SIGTERM", func(term *terminal) { _ = term.cmd.Process.Signal(syscall.SIGTERM) }},
		{"SIGINT", func(term *terminal) { _ = term.cmd.Process.Signal(syscall.SIGINT) }},
	} {
		term := openTerminal(t, 150, 20, bin("berth"), args...)
		n.shows(term, alternate, "default/load-node", "by cpu", red)
		term.press(t, "m")
		n.shows(term, "memory")
		term.press(t, " ")
		n.shows(term, "default/load-node/busy")
		// A narrow terminal gets lines that fit: the last columns go.
		term.width, term.height = 40, 8
		term.resize(t, 40, 8)
		if got := n.shows(term, "default/load-node/busy"); strings.Contains(got[strings.LastIndex(got,
			"default/load-node/busy"):], "IO-PSI") {
			t.Errorf("%s: lines are longer than the terminal is wide: %q", c.name, got)
		}
		if running := term.modes(t); running.Lflag == term.before.Lflag {
			t.Errorf("%s: keys are not read as they come", c.name)
		}
		c.end(term)
		n.eventually(c.name+" to end it", func() error {
			select {
			case err := <-term.exited:
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
				return nil
			default:
				return errors.New("it runs") // what it shows at its end is looked for below
			}
		})
		n.shows(term, back, cursor)
		if after := term.modes(t); after != term.before {
			t.Errorf("%s: the terminal is left as %+v, it was %+v", c.name, after, term.before)
		}
	}

	// Without a terminal it is text, and json for programs.
	out := n.must("cgroups", "top", "--interval=100ms", "-n", "3", "--sort=memory", "--containers")
	if strings.Count(out, "default/load-node/busy") != 3 || strings.Contains(out, "\x1b") {
		t.Errorf("piped:\n%s", out)
	}
	out = n.must("cgroups", "top", "--interval=100ms", "-n", "2", "-o", "json")
	if strings.Count(out, `"path"`) < 2 || strings.Count(strings.TrimSpace(out), "\n") != 1 {
		t.Errorf("json:\n%s", out)
	}
	n.remove("load.yaml")
	n.waitGone("load")
	n.requireNoPods()
}

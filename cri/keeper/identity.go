package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// identity names a process for good: a pid alone is reused, and start times
// begin anew with each boot.
type identity struct {
	pid   int
	start uint64
	boot  string
}

// readIdentity reads keeper.pid. ErrGone says that no keeper ever came so far.
func readIdentity(dir string) (identity, error) {
	b, err := os.ReadFile(filepath.Join(dir, "keeper.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return identity{}, ErrGone
	}
	if err != nil {
		return identity{}, err
	}
	return parseIdentity(string(b))
}

// findIdentity returns the identity of the live keeper of a directory. One that
// was started by an agent that died at once may not have written its own yet,
// but holds its lock: that one is waited for.
func findIdentity(dir string) (identity, error) {
	for range 1000 {
		ident, err := readIdentity(dir)
		if err != nil && !errors.Is(err, ErrGone) {
			return ident, err
		}
		if err == nil && ident.alive() {
			return ident, nil
		}
		if !lockHeld(dir) {
			return ident, ErrGone
		}
		time.Sleep(2 * time.Millisecond)
	}
	return identity{}, errors.New("a keeper holds its lock but does not come up")
}

// lockHeld says whether a keeper lives in the directory.
func lockHeld(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, "keeper.lock"), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

func parseIdentity(s string) (identity, error) {
	f := strings.Fields(s)
	if len(f) != 3 {
		return identity{}, fmt.Errorf("read keeper.pid: want 3 fields, have %d", len(f))
	}
	pid, err := strconv.Atoi(f[0])
	if err != nil || pid <= 1 {
		return identity{}, fmt.Errorf("read keeper.pid: %q is no process ID", f[0])
	}
	start, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return identity{}, fmt.Errorf("read keeper.pid: %q is no start time", f[1])
	}
	return identity{pid: pid, start: start, boot: f[2]}, nil
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(b))
}

// alive says whether the process still is the one recorded and not a zombie.
func (i identity) alive() bool {
	if i.boot != "" && i.boot != bootID() {
		return false
	}
	st, err := readStat(i.pid)
	return err == nil && st.start == i.start && st.state != 'Z' && st.state != 'X'
}

// open returns a pidfd of the process. The identity is checked after the pidfd
// was opened: from then on the pid cannot change under us.
func (i identity) open() (*os.File, error) {
	fd, err := unix.PidfdOpen(i.pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	if !i.alive() {
		f.Close()
		return nil, ErrGone
	}
	return f, nil
}

func signalPidfd(f *os.File, sig unix.Signal) error {
	fd, err := rawFd(f)
	if err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	return nil
}

// waitReadable waits in the runtime's poller, without a thread, until a file
// is readable. A pidfd is readable when its process has ended.
func waitReadable(ctx context.Context, f *os.File) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	err = rc.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

type stat struct {
	state   byte
	ppid    int
	session int
	start   uint64
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// parseStat reads /proc/<pid>/stat. The command name in it is chosen by the
// process and may hold spaces and parentheses: fields are counted after the
// last parenthesis.
func parseStat(b []byte) (stat, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, errors.New("read stat: no command name")
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, errors.New("read stat: too few fields")
	}
	st := stat{state: f[0][0]}
	var err error
	if st.ppid, err = strconv.Atoi(string(f[1])); err != nil {
		return stat{}, fmt.Errorf("read stat: parent: %w", err)
	}
	if st.session, err = strconv.Atoi(string(f[3])); err != nil {
		return stat{}, fmt.Errorf("read stat: session: %w", err)
	}
	if st.start, err = strconv.ParseUint(string(f[19]), 10, 64); err != nil {
		return stat{}, fmt.Errorf("read stat: start time: %w", err)
	}
	return st, nil
}

// children lists a process's children, through all its threads.
func children(pid int) []int {
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	var pids []int
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			continue
		}
		for f := range bytes.FieldsSeq(b) {
			if n, err := strconv.Atoi(string(f)); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

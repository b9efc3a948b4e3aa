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
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// identity names a process for good: a pid alone is reused, and start times
// begin again with each boot.
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

// comingUp is how often, every two milliseconds, a keeper is looked for that
// holds its lock and has not written its identity yet.
const comingUp = 1000

// findIdentity returns the identity of the live keeper of a directory. ErrGone
// says that there is none, for certain; what could not be asked is another error.
//
// A keeper that was started by an agent that died at once may not have written
// its identity yet, but holds its lock: that one is waited for. One whose file
// is damaged is found by the lock that it has open.
func findIdentity(ctx context.Context, dir string) (identity, error) {
	for try := range comingUp {
		ident, err := readIdentity(dir)
		damaged := err != nil && !errors.Is(err, ErrGone)
		if err == nil {
			alive, err := ident.alive()
			if alive || err != nil {
				return ident, err
			}
		}
		held, lockErr := lockHeld(dir)
		if lockErr != nil {
			return ident, errors.Join(err, lockErr)
		}
		if !held {
			return ident, ErrGone
		}
		if damaged || try%100 == 10 {
			found, err := lockHolder(dir)
			if !errors.Is(err, ErrGone) {
				return found, err
			}
		}
		select {
		case <-ctx.Done():
			return identity{}, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	return identity{}, errors.New("a keeper holds its lock but does not come up")
}

// lockHeld says whether a keeper lives in the directory.
func lockHeld(dir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, "keeper.lock"), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, os.NewSyscallError("flock", err)
}

// lockHolder finds the keeper by its open lock. It is for a directory whose
// keeper.pid says nothing: it looks at all processes of the machine. Nothing but
// a keeper has the lock open for long, and the name rules out who only tries it.
func lockHolder(dir string) (identity, error) {
	var lock unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "keeper.lock"), &lock); err != nil {
		return identity{}, os.NewSyscallError("stat", err)
	}
	boot, err := bootID()
	if err != nil {
		return identity{}, err
	}
	names, err := readDirNames("/proc")
	if err != nil {
		return identity{}, err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		st, err := readStat(pid)
		if err != nil || !hasOpen(pid, &lock) {
			continue
		}
		cmd, err := os.ReadFile("/proc/" + name + "/cmdline")
		if err == nil && bytes.HasPrefix(cmd, []byte("berth-keeper\x00")) {
			return identity{pid: pid, start: st.start, boot: boot}, nil
		}
	}
	return identity{}, ErrGone
}

// hasOpen says whether a process has the file among its first descriptors, where
// a keeper is given its lock.
func hasOpen(pid int, file *unix.Stat_t) bool {
	for fd := range 32 {
		var st unix.Stat_t
		err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/fd/"+strconv.Itoa(fd), &st)
		if err == nil && st.Dev == file.Dev && st.Ino == file.Ino {
			return true
		}
	}
	return false
}

func readDirNames(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
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

// bootID is read once: no process outlives a boot. A read that fails, for want of a descriptor say, is tried again.
func bootID() (string, error) {
	if id := knownBoot.Load(); id != nil {
		return *id, nil
	}
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	id := string(bytes.TrimSpace(b))
	if err == nil {
		knownBoot.Store(&id)
	}
	return id, err
}

var knownBoot atomic.Pointer[string]

// alive says whether the process still is the one recorded and not a zombie. An
// error says that this is not known: that no file can be opened just now, for
// instance, is not the end of a process.
func (i identity) alive() (bool, error) {
	if i.boot != "" {
		boot, err := bootID()
		if err != nil || i.boot != boot {
			return false, err
		}
	}
	st, err := readStat(i.pid)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return st.start == i.start && st.state != 'Z' && st.state != 'X', nil
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
	alive, err := i.alive()
	if err == nil && !alive {
		err = ErrGone
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// signal signals the process, if it still is there.
func (i identity) signal(sig unix.Signal) error {
	f, err := i.open()
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return signalPidfd(f, sig)
}

// signalPidfd signals the process of a pidfd; one that has ended is no error. The
// file is in use meanwhile: closed by somebody else, its number could be that of
// another process's pidfd.
func signalPidfd(f *os.File, sig unix.Signal) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := rc.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return err
	}
	if sent != nil && !errors.Is(sent, unix.ESRCH) {
		return os.NewSyscallError("pidfd_send_signal", sent)
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

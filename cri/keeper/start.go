package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/monitor"
)

// Config says what a keeper holds for its pod.
type Config struct {
	ID     string   // sandbox id
	Dir    string   // existing directory of this keeper
	Helper *os.File // the helper binary, see OpenHelper
	// NetNS is a pinned network namespace to join; "" is the host's.
	NetNS string
	// Namespaces the pod gets of its own. PID is one that its containers
	// share, with a second process as its process 1.
	IPC, UTS, PID bool
	Hostname      string
	// UserNS is a pinned user namespace that owns those of the pod, and RootUID
	// the number of its root on the host; "" is the host's.
	UserNS  string
	RootUID uint32
	// Sysctls are set in the pod's namespaces, by their dotted names.
	Sysctls map[string]string
	// CgroupProcs are the cgroup.procs files the keeper itself joins.
	CgroupProcs []string
	// LaunchProcs are those its launchers join, so that starting a container
	// is not charged to the pod. Without them launchers stay with the keeper.
	LaunchProcs []string
	// InitProcs are those that process 1 of a shared PID namespace joins before
	// it does anything else, so that it is found there whatever becomes of its
	// keeper.
	InitProcs   []string
	OOMScoreAdj int
	// NoSpare says that all containers will have a Runtime, so that no
	// launcher of libcontainer need wait for the first.
	NoSpare bool
	// How long others may take to freeze before a container is started that they could look into, and for how long its
	// start may keep them so; 0 is freezeLimit and launchLimit.
	freeze, launch time.Duration
}

const (
	freezeLimit = 2 * time.Second // a process that waits for a file system which does not answer cannot be frozen
	launchLimit = 20 * time.Second
)

// OpenHelper copies the helper binary into one sealed memfd, which all keepers
// of this agent execute. A container could reach the binary of the process that
// enters it through /proc, and a sealed one cannot be written (CVE-2019-5736);
// libcontainer sees the seals and does not make a copy at every start.
//
// A live keeper, of those whose directories are given, that executes the same binary
// out of such a memfd shares it: else each restart of the agent would take that
// memory once more.
func OpenHelper(path string, keepers ...string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open helper: %w", err)
	}
	defer src.Close()
	if f := sharedHelper(src, keepers); f != nil {
		return f, nil
	}
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("berth-helper", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 all are executable
		fd, err = unix.MemfdCreate("berth-helper", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("open helper: %w", os.NewSyscallError("memfd_create", err))
	}
	f := os.NewFile(uintptr(fd), "berth-helper")
	if _, err := io.Copy(f, src); err != nil {
		f.Close()
		return nil, fmt.Errorf("copy helper: %w", err)
	}
	const sealExec = 0x20 // F_SEAL_EXEC, since Linux 6.3
	_, _ = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, sealExec)
	if err := errors.Join(f.Chmod(0o511), seal(f, 0)); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal helper: %w", err)
	}
	return f, nil
}

// Start starts the keeper of a directory and returns when it is ready. A live
// keeper that is there already is returned instead, so that a Start whose end
// nobody saw can be done again.
func Start(ctx context.Context, c Config) (*Keeper, error) {
	k, err := start(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("start keeper %s: %w", c.ID, err)
	}
	return k, nil
}

func start(ctx context.Context, c Config) (*Keeper, error) {
	if c.Helper == nil {
		return nil, errors.New("no helper binary given")
	}
	lock, err := takeLock(ctx, c.Dir)
	if errors.Is(err, errLocked) {
		return Open(ctx, c.ID, c.Dir)
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	payload, err := c.fields()
	if err != nil {
		return nil, err
	}
	conf, err := sealed("berth-config", append(header(opHello, 0, len(payload)), payload...))
	if err != nil {
		return nil, err
	}
	defer conf.Close()
	dir, err := os.OpenFile(c.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	pid, pidfd, err := fork(c, []*os.File{conf, dir, lock, w, c.Helper})
	w.Close()
	if err != nil {
		return nil, err
	}
	ended := reap(pid, pidfd)
	pid1, err := awaitReady(ctx, r)
	var ident identity
	if err == nil {
		ident, err = readIdentity(c.Dir)
	}
	if err != nil {
		return nil, errors.Join(err, giveUp(pidfd, ended))
	}
	return &Keeper{id: c.ID, peer: peer{c.Dir, ident}, greeting: greeting{pid1, wireVersion}}, nil
}

// fork executes the helper as a keeper. Its files are numbered from 3 on, as
// cri/helper/keeper.c expects them; the binary itself is the last, because a
// number below could be overwritten on the way to exec.
func fork(c Config, files []*os.File) (int, *os.File, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	for _, f := range files {
		attr.Files = append(attr.Files, f.Fd())
	}
	pidfd := -1
	attr.Sys.PidFD = &pidfd
	exe := "/proc/self/fd/" + strconv.Itoa(len(attr.Files)-1)
	pid := 0
	err = monitor.Fork(func() (err error) {
		pid, err = syscall.ForkExec(exe, []string{"berth-keeper", c.ID}, attr)
		return err
	})
	if err != nil {
		return 0, nil, fmt.Errorf("execute helper: %w", err)
	}
	if pidfd < 0 {
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			return 0, nil, os.NewSyscallError("pidfd_open", err)
		}
	}
	_ = unix.SetNonblock(pidfd, true)
	return pid, os.NewFile(uintptr(pidfd), "pidfd"), nil
}

// giveUp kills a keeper that is not to be, and waits for its end: who undoes what
// was made for it must not do so under its hands. What it has started ends with
// it, by PR_SET_PDEATHSIG.
func giveUp(pidfd *os.File, ended <-chan struct{}) error {
	err := signalPidfd(pidfd, unix.SIGKILL) // fails where it has ended and the file is closed
	select {
	case <-ended:
		return nil
	case <-time.After(dying):
		return errors.Join(errors.New("it was killed and does not end"), err)
	}
}

// reap takes the keeper's zombie when it ends, and tells: it is the agent's child
// until the agent ends. Waiting on a pidfd costs a parked goroutine, where wait(2)
// would hold a thread for each pod.
func reap(pid int, pidfd *os.File) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer pidfd.Close()
		if err := waitReadable(context.Background(), pidfd); err != nil {
			return
		}
		var ws unix.WaitStatus
		_, _ = unix.Wait4(pid, &ws, unix.WNOHANG, nil)
	}()
	return ended
}

// awaitReady reads the one line a starting keeper says: "+<pid of the pod's
// process 1>" or "-<error>".
func awaitReady(ctx context.Context, r *os.File) (int, error) {
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b, err := io.ReadAll(io.LimitReader(r, 4096))
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		return 0, err
	}
	s := strings.TrimSpace(string(b))
	switch {
	case s == "":
		return 0, errors.New("keeper died while starting")
	case s[0] == '-':
		return 0, errors.New(s[1:])
	}
	return strconv.Atoi(s[1:])
}

var errLocked = errors.New("a keeper holds the lock")

// takeLock takes the lock that a keeper holds for life. A keeper that is still
// starting holds it too but has no socket yet: that one is waited for.
func takeLock(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "keeper.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, os.NewSyscallError("flock", err)
		}
		if c, err := dial(ctx, dir); err == nil {
			c.Close()
			f.Close()
			return nil, errLocked
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (c Config) fields() (fields, error) {
	var f fields
	f.str(tagID, c.ID)
	if c.NetNS != "" {
		f.str(tagNetNS, c.NetNS)
	}
	var ns uint32
	if c.IPC {
		ns |= nsIPC
	}
	if c.UTS {
		ns |= nsUTS
	}
	if c.PID {
		ns |= nsPID
	}
	f.u32(tagNamespaces, ns)
	if c.UserNS != "" {
		f.str(tagUserNS, c.UserNS)
		f.u32(tagRootUID, c.RootUID)
	}
	if c.Hostname != "" {
		if !c.UTS {
			return nil, errors.New("a hostname needs a UTS namespace of the pod's own")
		}
		f.str(tagHostname, c.Hostname)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sysctls)) {
		p, err := sysctlPath(name)
		if err != nil {
			return nil, err
		}
		f.str(tagSysctl, p+"="+c.Sysctls[name])
	}
	for _, p := range c.CgroupProcs {
		f.str(tagCgroup, p)
	}
	for _, p := range c.LaunchProcs {
		f.str(tagLaunchCgroup, p)
	}
	for _, p := range c.InitProcs {
		f.str(tagInitCgroup, p)
	}
	f.u32(tagOOMAdj, uint32(int32(c.OOMScoreAdj)))
	f.u32(tagFreezeLimit, uint32(cmp.Or(c.freeze, freezeLimit).Milliseconds()))
	f.u32(tagLaunchLimit, uint32(cmp.Or(c.launch, launchLimit).Milliseconds()))
	if c.NoSpare {
		f.u32(tagFlags, flagNoSpare)
	}
	return f, nil
}

// sysctlPath turns a sysctl's name into its path below /proc/sys. As sysctl(8)
// has it, the first separator of the two decides: with a slash first, dots are
// part of a name (net/ipv4/conf/eth0.1/forwarding).
func sysctlPath(name string) (string, error) {
	p := name
	i := strings.IndexAny(name, "./")
	switch {
	case i > 0 && name[i] == '.':
		p = strings.Map(func(r rune) rune {
			switch r {
			case '.':
				return '/'
			case '/':
				return '.'
			}
			return r
		}, name)
	case i <= 0:
		return "", fmt.Errorf("sysctl %q is not valid", name)
	}
	if !filepath.IsLocal(p) || strings.ContainsAny(p, "=\x00") || p != filepath.Clean(p) {
		return "", fmt.Errorf("sysctl %q is not valid", name)
	}
	return p, nil
}

package keeper

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/monitor"
)

// UserNS is a new user namespace, and perhaps a network namespace that it owns, held by a process until Close.
type UserNS struct {
	pid int
	end *os.File // the process ends when this does, so also with the agent
}

// NewUserNS makes one, with these mappings of ids. helper is from OpenHelper.
func NewUserNS(helper *os.File, uids, gids []syscall.SysProcIDMap, network bool) (*UserNS, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	defer null.Close()
	flags := uintptr(unix.CLONE_NEWUSER)
	if network {
		flags |= unix.CLONE_NEWNET
	}
	attr := &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: []uintptr{r.Fd(), null.Fd(), null.Fd(), helper.Fd()},
		Sys: &syscall.SysProcAttr{
			Setsid: true, Cloneflags: flags, UidMappings: uids, GidMappings: gids, GidMappingsEnableSetgroups: true,
		},
	}
	pid := 0
	err = monitor.Fork(func() (err error) {
		pid, err = syscall.ForkExec("/proc/self/fd/3", []string{"berth-userns"}, attr)
		return err
	})
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	return &UserNS{pid: pid, end: w}, nil
}

// Path is that of the namespace of a kind, "user" or "net", until Close.
func (u *UserNS) Path(kind string) string { return "/proc/" + strconv.Itoa(u.pid) + "/ns/" + kind }

// Close ends the process. What is pinned stays.
func (u *UserNS) Close() error {
	err := u.end.Close()
	for {
		_, werr := syscall.Wait4(u.pid, nil, 0, nil)
		if !errors.Is(werr, syscall.EINTR) {
			return errors.Join(err, werr)
		}
	}
}

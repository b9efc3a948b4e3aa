package keeper

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/berth-node/berth/internal/monitor"
)

// A Holder is a process that does nothing: a scope of systemd begins with one, and ends when it has none. It ends with
// the agent, too, since the other end of what it reads is the agent's.
type Holder struct {
	pid int
	end *os.File
}

// NewHolder starts one. helper is from OpenHelper.
func NewHolder(helper *os.File) (*Holder, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start holder: %w", err)
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("start holder: %w", err)
	}
	defer null.Close()
	attr := &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: []uintptr{r.Fd(), null.Fd(), null.Fd(), helper.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	}
	pid := 0
	err = monitor.Fork(func() (err error) {
		pid, err = syscall.ForkExec("/proc/self/fd/3", []string{"berth-holder"}, attr)
		return err
	})
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("start holder: %w", err)
	}
	return &Holder{pid: pid, end: w}, nil
}

// Pid is nobody else's until Close.
func (h *Holder) Pid() int { return h.pid }

// Close ends the process, and waits for its end. One that is stopped, or frozen with the scope, reads nothing, but
// can be killed on v2.
func (h *Holder) Close() error {
	err := errors.Join(syscall.Kill(h.pid, syscall.SIGKILL), h.end.Close())
	for {
		_, werr := syscall.Wait4(h.pid, nil, 0, nil)
		if !errors.Is(werr, syscall.EINTR) {
			return errors.Join(err, werr)
		}
	}
}

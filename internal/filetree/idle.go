package filetree

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Of ioprio_set(2), which golang.org/x/sys does not wrap.
const (
	ioprioWhoProcess = 1 // a thread, in truth
	ioprioClassIdle  = 3
	ioprioClassShift = 13
)

// Idle runs fn, whose reads and writes of disks wait for those of everybody else. Schedulers that know of priorities
// let them through after a while nevertheless, so that fn comes to its end on a disk that is never idle. What fn hands
// to other goroutines is not meant.
func Idle(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		// The priority is the thread's. It is never unlocked, so that the runtime ends it with this goroutine, and runs
		// nothing else there.
		runtime.LockOSThread()
		if err := setIdle(); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}

func setIdle() error {
	_, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, 0, ioprioClassIdle<<ioprioClassShift)
	// A kernel without priorities (CONFIG_BLOCK) has no disks that somebody could wait for.
	if errno != 0 && errno != unix.ENOSYS {
		return fmt.Errorf("lower the I/O priority: %w", errno)
	}
	return nil
}

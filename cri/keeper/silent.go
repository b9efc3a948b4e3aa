package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrSilent says that the keeper lives, as far as is known, and does not answer:
// it was stopped, or frozen with its cgroup, or more want to be answered than it
// can. What it was asked for may still be done when it goes on.
var ErrSilent = errors.New("keeper does not answer")

// answer is how long a keeper may take for an answer: it answers at once, as it
// waits for nothing but its next event. A variable for tests.
var answer = 10 * time.Second

const (
	// hangUp is how long a keeper that has hung up is given to be gone. The kernel
	// closes the files of a process before it says that it has ended.
	hangUp = time.Second
)

// dial connects, no longer than a keeper may take for an answer.
func (k *Keeper) dial(ctx context.Context) (*net.UnixConn, error) {
	c, err := dial(ctx, k.dir)
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return nil, k.ended()
	case errors.Is(err, unix.EAGAIN) && ctx.Err() == nil:
		return nil, ErrSilent
	}
	return nil, err
}

// ended says what is known of a keeper that does not listen, or has hung up: ErrGone when its process has ended.
func (k *Keeper) ended() error {
	pidfd, err := k.ident.open()
	if err != nil {
		return err
	}
	defer pidfd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), hangUp)
	defer cancel()
	if err := waitReadable(ctx, pidfd); err == nil {
		return ErrGone
	}
	return fmt.Errorf("%w: it lives and has hung up", ErrSilent)
}

// guard sees to it that an answer is not waited for without end. What it returns says, at the end, whether it was. Most questions
// are answered at once; what takes as long as it takes is waited for as long as the keeper answers others.
func (k *Keeper) guard(o op, c *net.UnixConn, cut func()) func() bool {
	switch o {
	case opRun, opExec, opAttach:
		return k.watchdog(cut)
	}
	_ = c.SetDeadline(time.Now().Add(answer))
	return func() bool {
		_ = c.SetDeadline(time.Time{})
		return false
	}
}

// watchdog asks the keeper whether it answers, every now and then, and calls cut when it does not. What it returns ends that and
// says whether it was so.
func (k *Keeper) watchdog(cut func()) func() bool {
	ctx, cancel := context.WithCancel(context.Background())
	silent := make(chan struct{})
	var t *time.Timer
	ready := make(chan struct{})
	t = time.AfterFunc(answer, func() {
		<-ready // t is set
		_, err := k.call(ctx, opHello, nil)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, ErrSilent):
			close(silent)
			cut()
		default: // it answers, or has ended, which who waits hears by himself
			t.Reset(answer)
		}
	})
	close(ready)
	return func() bool {
		cancel()
		t.Stop()
		select {
		case <-silent:
			return true
		default:
			return false
		}
	}
}

// Await waits until the keeper of a directory answers, however long that takes, and returns it. ErrGone says that it has ended
// instead. Other errors are of the moment.
func Await(ctx context.Context, id, dir string) (*Keeper, error) {
	ident, err := findIdentity(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("await keeper %s: %w", id, err)
	}
	k := &Keeper{id: id, dir: dir, ident: ident}
	if err := k.await(ctx); err != nil {
		return nil, fmt.Errorf("await keeper %s: %w", id, err)
	}
	return k, nil
}

// AwaitKeeper waits until no keeper lives in a directory, without asking it anything.
func AwaitKeeper(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		ident, err := findIdentity(ctx, dir)
		if err == nil {
			var pidfd *os.File
			if pidfd, err = ident.open(); err == nil {
				err = waitReadable(ctx, pidfd)
				pidfd.Close()
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil, errors.Is(err, ErrGone):
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait): // an error of the moment
		}
	}
}

// await sends its question and sleeps until there is an answer, or until the connection is cut, which the end of a keeper does.
func (k *Keeper) await(ctx context.Context) error {
	c, err := k.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	m, files, err := exchange(c, opHello, nil, nil)
	closeAll(files)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, ErrGone):
		return k.ended()
	case err != nil:
		return err
	}
	k.pid1, k.version = int(m.u32(tagPid1)), m.u32(tagVersion)
	return nil
}

// Signal sends a signal to the first process of a container without its keeper, which does not answer. The process is identified
// by the record that the keeper has written when it started it. ErrNotFound says that it has ended.
func Signal(dir, containerID string, sig unix.Signal) error {
	if err := checkID(containerID); err != nil {
		return fmt.Errorf("signal container: %w", err)
	}
	f, err := openContainer(dir, containerID)
	if err == nil {
		defer f.Close()
		err = signalPidfd(f, sig)
	}
	if err != nil {
		return fmt.Errorf("signal container %s: %w", containerID, err)
	}
	return nil
}

// AwaitEnd waits for the end of the first process of a container whose keeper does not answer. It has ended, and who may know
// how is only its parent.
func AwaitEnd(ctx context.Context, dir, containerID string) error {
	f, err := openContainer(dir, containerID)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for container %s: %w", containerID, err)
	}
	defer f.Close()
	if err := waitReadable(ctx, f); err != nil {
		return fmt.Errorf("wait for container %s: %w", containerID, err)
	}
	return nil
}

func openContainer(dir, id string) (*os.File, error) {
	_, ident, err := stateOf(dir, id)
	if err != nil {
		return nil, err
	}
	f, err := ident.open()
	if errors.Is(err, ErrGone) {
		return nil, ErrNotFound
	}
	return f, err
}

// damaged says whether an error is of what records say, and not of reading them.
func damaged(err error) bool {
	var e *os.PathError
	var s *os.SyscallError
	return !errors.As(err, &e) && !errors.As(err, &s)
}

package keeper

import (
	"context"
	"errors"
	"fmt"
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

// Await waits until the keeper of a directory answers, however long that takes, and returns it. ErrGone says that it
// has ended instead. Other errors are of the moment.
func Await(ctx context.Context, id, dir string) (*Keeper, error) {
	ident, err := findIdentity(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("await keeper %s: %w", id, err)
	}
	k := &Keeper{id: id, peer: peer{dir, ident}}
	if k.greeting, err = k.peer.await(ctx); err != nil {
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

// Signal sends a signal to the first process of a container without its keeper, which does not answer. The process is
// identified by the record that the keeper has written when it started it. ErrNotFound says that it has ended.
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

// AwaitEnd waits for the end of the first process of a container whose keeper does not answer. It has ended, and who
// may know how is only its parent.
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

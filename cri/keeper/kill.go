package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dying is how long Kill waits for the end of what it has killed. Only a process that the kernel holds, in a file
// system that does not answer for instance, takes longer than some milliseconds.
const dying = 10 * time.Second

// Kill ends a keeper that cannot be talked to, and the processes of its pod:
// those it is the parent of, and those its records name, which are still there
// when the keeper itself was killed. Each is identified before it is killed. It
// is idempotent, and returns when they have ended; they may still have to be
// reaped.
func Kill(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dying)
	defer cancel()
	ident, err := findIdentity(ctx, dir)
	switch {
	case errors.Is(err, ErrGone):
	case err != nil:
		return fmt.Errorf("kill keeper: %w", err)
	default:
		if err := killKeeper(ctx, ident); err != nil {
			return fmt.Errorf("kill keeper: %w", err)
		}
	}
	var left []identity
	// What a damaged record names, the end of the pod's cgroup finds: it must not keep the pod from going.
	states, _ := ReadStates(dir)
	for _, s := range states {
		if s.Pid > 1 && s.start != 0 && ident.boot != "" {
			left = append(left, identity{pid: s.Pid, start: s.start, boot: ident.boot})
		}
	}
	if err = killAll(ctx, left); err != nil {
		return fmt.Errorf("kill keeper: %w", err)
	}
	return nil
}

// killKeeper stops the keeper, so that it starts nothing more, and then what
// descends from it, so that it forks nothing more: until nobody new is found. The
// keeper is killed with them before the first is waited for: process 1 of a PID
// namespace ends only when all in it have been reaped, and a keeper that is
// stopped reaps nobody.
func killKeeper(ctx context.Context, ident identity) error {
	f, err := ident.open()
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := signalPidfd(f, unix.SIGSTOP); err != nil {
		return err
	}
	var list []identity
	known := map[identity]bool{}
	for found := true; found && ctx.Err() == nil; {
		found = false
		for _, d := range descendants(ident.pid, nil) {
			if known[d] {
				continue
			}
			found, known[d] = true, true
			list = append(list, d)
			if err := d.signal(unix.SIGSTOP); err != nil {
				return err
			}
		}
	}
	return killAll(ctx, append(list, ident))
}

// killAll kills the processes and waits until they have ended, or ctx has.
func killAll(ctx context.Context, list []identity) error {
	var errs []error
	var dead []*os.File
	for _, i := range list {
		f, err := i.open()
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer f.Close()
		errs = append(errs, signalPidfd(f, unix.SIGKILL))
		dead = append(dead, f)
	}
	for _, f := range dead {
		_ = waitReadable(ctx, f) // who looks finds what the kernel holds
	}
	return errors.Join(errs...)
}

func descendants(pid int, found []identity) []identity {
	for _, c := range children(pid) {
		st, err := readStat(c)
		if err != nil {
			continue
		}
		found = append(found, identity{pid: c, start: st.start})
		found = descendants(c, found)
	}
	return found
}

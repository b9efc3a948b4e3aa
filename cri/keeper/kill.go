package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dying is how long Kill waits for the end of what it has killed. Only a process that the kernel holds, in a file system that does not
// answer for instance, takes longer than some milliseconds.
const dying = 10 * time.Second

// Kill ends a keeper that cannot be talked to, and the processes of its pod:
// those it is the parent of, and those its records name, which are still there
// when the keeper itself was killed. Each is identified before it is killed. It
// is idempotent, and returns when they have ended; they may still have to be
// reaped.
func Kill(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dying)
	defer cancel()
	ident, err := findIdentity(dir)
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
	states, err := ReadStates(dir)
	for _, s := range states {
		if s.Pid > 1 && s.start != 0 && ident.boot != "" {
			left = append(left, identity{pid: s.Pid, start: s.start, boot: ident.boot})
		}
	}
	if err = errors.Join(err, killAll(ctx, left)); err != nil {
		return fmt.Errorf("kill keeper: %w", err)
	}
	return nil
}

// killKeeper stops the keeper, so that it starts nothing more, and kills its
// descendants and then itself. What one of them has forked in its last moment
// becomes the keeper's child, as long as that is there, and is found in the next
// round.
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
	killed := map[identity]bool{}
	for {
		var fresh []identity
		for _, d := range descendants(ident.pid, nil) {
			if !killed[d] {
				killed[d] = true
				fresh = append(fresh, d)
			}
		}
		if len(fresh) == 0 || ctx.Err() != nil {
			break
		}
		if err := killAll(ctx, fresh); err != nil {
			return err
		}
	}
	return killAll(ctx, []identity{ident})
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

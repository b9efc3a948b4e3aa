package keeper

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Kill ends a keeper that cannot be talked to, and the processes of its pod:
// those it is the parent of, and those its records name, which are still there
// when the keeper itself was killed. Each is identified before it is killed. It
// is idempotent, and returns when the keeper cannot run any more, not when the
// last process has been reaped.
func Kill(dir string) error {
	var left []identity
	ident, err := findIdentity(dir)
	switch {
	case errors.Is(err, ErrGone):
	case err != nil:
		return fmt.Errorf("kill keeper: %w", err)
	default:
		if left, err = killKeeper(ident); err != nil {
			return fmt.Errorf("kill keeper: %w", err)
		}
	}
	states, err := ReadStates(dir)
	for _, s := range states {
		if s.Pid > 1 && s.start != 0 && ident.boot != "" {
			left = append(left, identity{pid: s.Pid, start: s.start, boot: ident.boot})
		}
	}
	for _, i := range left {
		err = errors.Join(err, i.kill())
	}
	if err != nil {
		return fmt.Errorf("kill keeper: %w", err)
	}
	return nil
}

// killKeeper stops the keeper, so that it starts nothing more, looks who its
// descendants are, and kills it.
func killKeeper(ident identity) ([]identity, error) {
	f, err := ident.open()
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := signalPidfd(f, unix.SIGSTOP); err != nil {
		return nil, err
	}
	left := descendants(ident.pid, nil)
	return left, signalPidfd(f, unix.SIGKILL)
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

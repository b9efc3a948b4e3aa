// Package command runs programs of the node: bounded in time and in what is kept of what they say, and with an error
// for one that is missing that names the Debian package it is in.
package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/berth-node/berth/internal/excerpt"
	"github.com/berth-node/berth/internal/monitor"
)

const (
	// drain is how long what a program has started may keep its output open after the program itself has ended: it
	// might never close it.
	drain = 5 * time.Second
	// unhurried is how long a program has to end that is not to be killed.
	unhurried = 30 * time.Second
	// mostSaid bounds what is kept of what a program says.
	mostSaid = 64 << 10
)

// ErrMissing says that a program is not on the node.
var ErrMissing = errors.New("is not on the node")

// Call is a program with what it is given.
type Call struct {
	Name  string
	Args  []string
	Stdin []byte // written to a pipe, so that secrets are in no argument and no file
	// Deadline is how long it may take; 0: as long as the context.
	Deadline time.Duration
	// Apart has it in a process group of its own: what a terminal sends to all in front of it, at its end or for
	// Ctrl-C, is for this program to act on.
	Apart bool
	// Whole is for what must not end in the middle, as between the suspension of a device and its resumption: it goes
	// on when this process is killed, is asked to end when its time is over, and killed when it does not.
	Whole bool
}

// Output is what a program has written to its two outputs, the beginning of each.
type Output struct{ Out, Said string }

// Run runs a program of the node, until the context ends at the latest.
func Run(ctx context.Context, name string, args ...string) error {
	_, err := Call{Name: name, Args: args}.Run(ctx)
	return err
}

// Run runs the program until it ends, the context does, or the deadline is over. What it says is in the error when it
// fails, which wraps [exec.ExitError], [ErrMissing], or why it was given up.
func (c Call) Run(ctx context.Context) (Output, error) {
	tool, err := exec.LookPath(c.Name)
	if err != nil {
		return Output{}, missing(c.Name)
	}
	if c.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Deadline)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, tool, c.Args...)
	o, e := excerpt.First{Most: mostSaid}, excerpt.First{Most: mostSaid}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &o, &e, drain
	// Some programs ask the locale how to say what is parsed here.
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: c.Apart || c.Whole}
	if c.Stdin != nil {
		cmd.Stdin = bytes.NewReader(c.Stdin)
	}
	end := syscall.SIGKILL
	if c.Whole {
		end, cmd.WaitDelay = 0, unhurried
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	}
	err = withParent(cmd, end)
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the program itself has ended well
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	out := Output{string(o.Bytes), strings.TrimSpace(string(e.Bytes))}
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", c.Name, err, strings.TrimSpace(out.Out+out.Said))
	}
	return out, nil
}

// withParent runs a program that gets a signal when this one ends: the next agent looks at what is mounted and begins
// again, and what an orphan of the last one does after that look nobody knows of.
func withParent(cmd *exec.Cmd, end syscall.Signal) error {
	ended, err := StartWithParent(cmd, end)
	if err != nil {
		return err
	}
	return <-ended
}

// StartWithParent starts a program that gets a signal when this one ends, however it ends; 0: none. The channel has
// what [exec.Cmd.Wait] returns, and is closed then.
func StartWithParent(cmd *exec.Cmd, end syscall.Signal) (ended <-chan error, err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = end
	started, done := make(chan error, 1), make(chan error, 1)
	go func() {
		defer close(done)
		// The kernel takes the end of the thread that has started the program for that of its parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := monitor.Fork(cmd.Start)
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	return done, <-started
}

// Find says that a program is not on the node, by an error that wraps [ErrMissing].
func Find(name string) error {
	if _, err := exec.LookPath(name); err != nil {
		return missing(name)
	}
	return nil
}

// packageOf is where Debian has a program.
func packageOf(name string) string {
	switch {
	case strings.HasSuffix(name, ".xfs") || strings.HasPrefix(name, "xfs_"):
		return "xfsprogs"
	case strings.HasPrefix(name, "btrfs") || strings.HasSuffix(name, ".btrfs"):
		return "btrfs-progs"
	case strings.Contains(name, ".ext") || name == "resize2fs":
		return "e2fsprogs"
	}
	return map[string]string{
		"blkid": "util-linux", "mount": "mount", "mount.nfs": "nfs-common", "cryptsetup": "cryptsetup-bin", "dmsetup": "dmsetup",
		"thin_check": "thin-provisioning-tools", "lvs": "lvm2", "vgs": "lvm2", "lvcreate": "lvm2", "lvremove": "lvm2", "lvextend": "lvm2", "lvchange": "lvm2",
	}[name]
}

func missing(name string) error {
	if pkg := packageOf(name); pkg != "" {
		return fmt.Errorf("the program %s %w (Debian package %s)", name, ErrMissing, pkg)
	}
	return fmt.Errorf("the program %s %w", name, ErrMissing)
}

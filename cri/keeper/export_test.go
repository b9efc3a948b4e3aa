package keeper

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// AnswerWithin sets how long a keeper may take for an answer, for one test.
func AnswerWithin(t testing.TB, d time.Duration) {
	before, dead := answer, killed
	answer, killed = d, d
	t.Cleanup(func() { answer, killed = before, dead })
}

// HoldUp sets for how long a start may hold up others.
func (c *Config) HoldUp(freeze, launch time.Duration) { c.freeze, c.launch = freeze, launch }

// GiveUp has a process started and killed, and hangs up with the answer to its start there, but not read.
func (k *Keeper) GiveUp(ctx context.Context, e Exec) error {
	f, err := e.fields(nil, 0)
	if err != nil {
		return err
	}
	c, err := k.peer.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := send(c, opExec, f); err != nil {
		return err
	}
	conn, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if err := conn.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK)
		return err == nil
	}); err != nil {
		return err
	}
	return sendSignal(c, unix.SIGKILL)
}

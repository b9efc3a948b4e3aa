package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxCapture is what the largest packet of captured output takes: see CHUNK in cri/helper/capture.c.
const maxCapture = 34 << 10

// packets are what requests are made in, and captured output is received into.
var packets = sync.Pool{New: func() any { return new([maxCapture]byte) }}

// killed is how long the end of a command that was killed is waited for: one that the kernel cannot end now, as it
// waits for a disk that is gone, must not hold up who has given it up.
var killed = 10 * time.Second // a variable for tests

// Captures says whether the keeper knows [Keeper.Capture]: one that was started by an older version does not, nor can
// the processes of other runtimes be captured.
func (k *Keeper) Captures(e Exec) bool {
	return k.greeting.version >= 2 && e.Runtime == nil && !e.Process.Terminal
}

// Capture runs a process as [Keeper.Exec] does, without input, and writes its output to stdout and stderr until it has
// ended; output that somebody it left behind holds open is waited for a second more. When ctx ends, the process and all
// that it has started are killed, and the cause is returned. An error of a writer is returned too, after the process is
// killed.
func (k *Keeper) Capture(ctx context.Context, e Exec, stdout, stderr io.Writer) (Exit, error) {
	x, err := k.capture(ctx, e, stdout, stderr)
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrSilent) {
		return Exit{}, context.Cause(ctx)
	}
	if err != nil {
		return Exit{}, fmt.Errorf("exec in container %s: %w", e.ContainerID, err)
	}
	return x, nil
}

func (k *Keeper) capture(ctx context.Context, e Exec, stdout, stderr io.Writer) (Exit, error) {
	buf := packets.Get().(*[maxCapture]byte) // nothing else is in there
	defer packets.Put(buf)
	f, err := e.fields(begin(buf[:]), flagCapture)
	if err != nil {
		return Exit{}, err
	}
	l, err := k.lines.take(ctx, &k.peer)
	if err != nil {
		return Exit{}, err
	}
	if err := l.send(opExec, f); err != nil {
		l.Close()
		return Exit{}, gone(err)
	}
	stop := context.AfterFunc(ctx, func() { l.killSoon(killed) })
	watched := k.peer.watchdog(func() { _ = l.answers.SetReadDeadline(time.Unix(1, 0)) })
	x, err := captured(l, buf[:], e.ContainerID, stdout, stderr)
	if watched() {
		_ = l.kill() // for when it goes on
		err = ErrSilent
	}
	if !stop() {
		l.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) && k.mute(context.WithoutCancel(ctx)) {
			return Exit{}, ErrSilent // the command is not to blame for that it has not ended
		}
		return Exit{}, ctx.Err() // it ended because it was killed, or would have been
	}
	if err != nil {
		l.Close()
		return Exit{}, err
	}
	switch {
	case x.Signal == int(unix.SIGKILL):
		l.Close() // the keeper may have said so for an entry process that was killed, and hangs up
	case k.greeting.version < 3:
		l.Close() // it takes one command a connection
	default:
		k.lines.keep(l)
	}
	return x, nil
}

// mute says whether the keeper does not answer now.
func (k *Keeper) mute(ctx context.Context) bool {
	_, err := k.peer.hello(ctx)
	return errors.Is(err, ErrSilent)
}

func captured(l *line, buf []byte, id string, stdout, stderr io.Writer) (Exit, error) {
	for {
		n, err := l.receive(buf)
		if err != nil {
			return Exit{}, gone(err)
		}
		m, err := decode(buf[:n])
		if err != nil {
			return Exit{}, err
		}
		switch m.op {
		case opData:
			to := stdout
			if m.flags == streamStderr {
				to = stderr
			}
			_, err = to.Write(m.data)
		case opExit:
			_, err = stdout.Write(m.values[tagStdout])
			_, err2 := stderr.Write(m.values[tagStderr])
			x := Exit{ContainerID: id}
			x.setStatus(m.u32(tagStatus))
			return x, errors.Join(err, err2)
		case opError:
			return Exit{}, m.failure()
		default:
			return Exit{}, fmt.Errorf("keeper answered with unexpected operation %d", m.op)
		}
		if err != nil {
			_ = l.kill()
			return Exit{}, err
		}
	}
}

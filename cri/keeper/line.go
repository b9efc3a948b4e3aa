package keeper

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// line is a connection that carries one captured command after the other. A probe is asked every second, so what the
// agent does for one is made of as few wake-ups and system calls as there can be:
//
//   - The connection is not in the Go runtime's own poller, which would wake up when the keeper has taken a request, to
//     see that another could be sent. What is there is an epoll that tells of answers alone.
//   - Its calls do not block, so the scheduler is not told of them: it would wake its monitor to look after them.
//
// Both files close themselves when nobody has them any more.
type line struct {
	conn, answers *os.File
	io, wait      syscall.RawConn // of each
}

// lines keeps the connection of the last captured command for the next one.
type lines struct{ idle atomic.Pointer[line] }

// take returns the connection the last captured command has left, or a new one.
func (s *lines) take(ctx context.Context, p *peer) (*line, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if l := s.idle.Swap(nil); l != nil {
		if l.silent() {
			return l, nil
		}
		l.Close()
	}
	return openLine(ctx, p)
}

// keep leaves a connection for the next command. One is enough: the probes of a pod are rarely asked at the same time.
func (s *lines) keep(l *line) {
	if !s.idle.CompareAndSwap(nil, l) {
		l.Close()
	}
}

// close hangs up what was kept.
func (s *lines) close() {
	if l := s.idle.Swap(nil); l != nil {
		l.Close()
	}
}

func openLine(ctx context.Context, p *peer) (*line, error) {
	c, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var l *line
	if cerr := rc.Control(func(fd uintptr) { l, err = newLine(int(fd)) }); cerr != nil {
		return nil, cerr
	}
	return l, err
}

// newLine makes a line of a copy of a connection's descriptor.
func newLine(of int) (*line, error) {
	fd, err := unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	// A file that blocks stays out of the poller; each call says by itself that it does not wait.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	l := &line{conn: os.NewFile(uintptr(fd), "keeper")}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		l.Close()
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	_ = unix.SetNonblock(ep, true) // so that it is in the poller
	l.answers = os.NewFile(uintptr(ep), "keeper")
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		l.Close()
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	if l.io, err = l.conn.SyscallConn(); err == nil {
		l.wait, err = l.answers.SyscallConn()
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close hangs up.
func (l *line) Close() {
	l.conn.Close()
	if l.answers != nil {
		l.answers.Close()
	}
}

// silent says whether nothing has come since the last answer, not the keeper's end either.
func (l *line) silent() bool {
	var b [1]byte
	_, err := l.call(unix.SYS_RECVFROM, b[:], unix.MSG_PEEK)
	return errors.Is(err, unix.EAGAIN)
}

// call sends or receives one packet at once, or fails with EAGAIN.
func (l *line) call(number uintptr, b []byte, flags uintptr) (n int, err error) {
	cerr := l.io.Control(func(fd uintptr) {
		r, _, e := unix.RawSyscall6(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), flags|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if n = int(r); e != 0 {
			n, err = 0, e
		}
	})
	runtime.KeepAlive(b)
	if cerr != nil {
		return 0, cerr
	}
	return n, err
}

// send sends a message that was begun with [begin].
func (l *line) send(o op, f fields) error {
	packet, memfd, err := f.packet(o)
	if err != nil {
		return err
	}
	if memfd == nil {
		_, err := l.call(unix.SYS_SENDTO, packet, 0)
		return err
	}
	defer memfd.Close()
	var serr error
	if err := l.io.Control(func(fd uintptr) {
		serr = unix.Sendmsg(int(fd), packet, unix.UnixRights(int(memfd.Fd())), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}); err != nil {
		return err
	}
	return serr
}

// receive waits for a packet.
func (l *line) receive(b []byte) (int, error) {
	var n int
	var err error
	if werr := l.wait.Read(func(uintptr) bool {
		if n, err = l.call(unix.SYS_RECVFROM, b, 0); errors.Is(err, wasUnread) {
			n, err = l.call(unix.SYS_RECVFROM, b, 0)
		}
		return !errors.Is(err, unix.EAGAIN)
	}); werr != nil {
		return 0, werr
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

// killSoon has the command killed; who receives waits no longer than that for it.
func (l *line) killSoon(wait time.Duration) {
	_ = l.kill()
	_ = l.answers.SetReadDeadline(time.Now().Add(wait))
}

func (l *line) kill() error {
	f := begin(nil)
	f.u32(tagSignal, uint32(unix.SIGKILL))
	return l.send(opSignal, f)
}

package probes

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// line is a connection for one question, to an address that need not be looked up. A net.Conn would do as well. But
// what a question costs besides its packets is system calls and wake-ups, and here it has fewer:
//
//   - The handshake's last packet is the one with the request.
//   - A server on this machine has answered the handshake when connect(2) returns, so that nobody waits for that.
//   - What is waited for is an epoll that tells of answers alone. The Go runtime's poller would wake a thread to say
//     that the connection can be written to.
//   - Its calls do not block, so the scheduler is not told of them: it would wake its monitor to look after them.
type line struct {
	fd      int
	to      netip.AddrPort
	answers *answers
	added   bool // to answers
	stop    func() bool
}

// answers is an epoll in the runtime's poller. It closes itself when nobody has it any more.
type answers struct {
	file *os.File
	wait syscall.RawConn
	fd   int
}

// idle are those that are between two questions.
var idle sync.Pool

func newAnswers() (*answers, error) {
	if a, ok := idle.Get().(*answers); ok {
		return a, nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	_ = unix.SetNonblock(fd, true) // so that it is in the poller
	a := &answers{file: os.NewFile(uintptr(fd), "answers"), fd: fd}
	if a.wait, err = a.file.SyscallConn(); err != nil {
		a.file.Close()
		return nil, err
	}
	return a, nil
}

// openLine connects and sends. The end of the context ends what is waited for.
func openLine(ctx context.Context, to netip.AddrPort, text []byte) (*line, error) {
	a, err := newAnswers()
	if err != nil {
		return nil, err
	}
	family, addr := sockaddr(to)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		idle.Put(a)
		return nil, os.NewSyscallError("socket", err)
	}
	l := &line{fd: fd, to: to, answers: a}
	l.stop = context.AfterFunc(ctx, func() { _ = a.file.SetReadDeadline(time.Unix(1, 0)) })
	if err := l.open(ctx, addr, text); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// open connects, and sends the text with the last packet of the handshake.
func (l *line) open(ctx context.Context, addr, text []byte) error {
	// As dialer has it: the connection is closed with a reset.
	linger := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, 1), 0)
	if err := l.set(unix.SOL_SOCKET, unix.SO_LINGER, linger); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	// It is on again with the answer to the handshake. Without it there is one packet more, and all else is the same.
	_ = l.set(unix.IPPROTO_TCP, unix.TCP_QUICKACK, make([]byte, 4))
	if _, err := raw(unix.SYS_CONNECT, l.fd, addr, 0); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return l.failed("dial", os.NewSyscallError("connect", err))
	}
	connected := false
	send := func() error {
		for len(text) > 0 {
			n, err := raw(unix.SYS_SENDTO, l.fd, text, unix.MSG_NOSIGNAL)
			if err != nil {
				return err
			}
			connected, text = true, text[n:]
		}
		return nil
	}
	err := send()
	if errors.Is(err, unix.EAGAIN) { // it is not connected yet, or takes no more
		if err = l.watch(unix.EPOLLOUT); err == nil {
			err = l.until(send)
		}
	}
	switch {
	case err == nil:
		return l.watch(unix.EPOLLIN)
	case errors.Is(err, os.ErrDeadlineExceeded) && (connected || errors.Is(ctx.Err(), context.Canceled)):
		return ctx.Err()
	case connected:
		return l.failed("write", os.NewSyscallError("write", err))
	case errors.As(err, new(unix.Errno)):
		err = os.NewSyscallError("connect", err)
	}
	return l.failed("dial", err)
}

// Read implements [io.Reader].
func (l *line) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	var n int
	err := l.until(func() (err error) {
		n, err = raw(unix.SYS_RECVFROM, l.fd, b, 0)
		return err
	})
	switch {
	case errors.As(err, new(unix.Errno)):
		return 0, l.failed("read", os.NewSyscallError("read", err))
	case err == nil && n == 0:
		err = io.EOF
	}
	return n, err
}

// Close hangs up.
func (l *line) Close() error {
	if l.added {
		// Closing does it too, but not while a program that is being started has a copy.
		_ = unix.EpollCtl(l.answers.fd, unix.EPOLL_CTL_DEL, l.fd, nil)
	}
	_, err := raw(unix.SYS_CLOSE, l.fd, nil, 0)
	if l.stop() {
		idle.Put(l.answers)
	} else {
		l.answers.file.Close() // the context's end may yet come to it
	}
	return os.NewSyscallError("close", err)
}

// watch says which events are waited for.
func (l *line) watch(events uint32) error {
	op := unix.EPOLL_CTL_ADD
	if l.added {
		op = unix.EPOLL_CTL_MOD
	}
	l.added = true
	return os.NewSyscallError("epoll_ctl",
		unix.EpollCtl(l.answers.fd, op, l.fd, &unix.EpollEvent{Events: events, Fd: int32(l.fd)}))
}

// until calls f, and again with each event, until it has not to wait any more. It returns the error of f, or
// [os.ErrDeadlineExceeded].
func (l *line) until(f func() error) (err error) {
	if werr := l.answers.wait.Read(func(uintptr) bool {
		err = f()
		return !errors.Is(err, unix.EAGAIN)
	}); werr != nil {
		return werr
	}
	return err
}

// failed is an error as package net words it.
func (l *line) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: net.TCPAddrFromAddrPort(l.to), Err: err}
}

func (l *line) set(level, option uintptr, value []byte) error {
	_, _, e := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(l.fd), level, option,
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(len(value)), 0)
	runtime.KeepAlive(value)
	if e != 0 {
		return e
	}
	return nil
}

// raw makes a call that does not block.
func raw(number uintptr, fd int, b []byte, flags uintptr) (int, error) {
	n, _, e := unix.RawSyscall6(number, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		flags, 0, 0)
	runtime.KeepAlive(b)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// sockaddr is an address as the kernel has it (ip(7), ipv6(7)).
func sockaddr(to netip.AddrPort) (family int, b []byte) {
	ip := to.Addr().Unmap()
	if ip.Is4() {
		family = unix.AF_INET
	} else {
		family = unix.AF_INET6
	}
	b = binary.NativeEndian.AppendUint16(make([]byte, 0, unix.SizeofSockaddrInet6), uint16(family))
	b = binary.BigEndian.AppendUint16(b, to.Port())
	if family == unix.AF_INET {
		return family, append(b, ip.AsSlice()...)[:unix.SizeofSockaddrInet4]
	}
	b = append(b, 0, 0, 0, 0) // flow information
	return family, append(b, ip.AsSlice()...)[:unix.SizeofSockaddrInet6]
}

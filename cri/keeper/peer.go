package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// peer is the process at the other end of the connections: where it listens, and who it is for good. Each
// request makes a connection of its own.
type peer struct {
	dir   string
	ident identity
}

// greeting is what a keeper says of itself.
type greeting struct {
	pid1 int // process 1 of the PID namespace that the pod's containers share; 0: they share none
	// version is that of the wire format the keeper knows.
	version uint32
}

func greetingOf(m message) greeting { return greeting{int(m.u32(tagPid1)), m.u32(tagVersion)} }

// dial connects, no longer than a keeper may take for an answer.
func (p *peer) dial(ctx context.Context) (*net.UnixConn, error) {
	c, err := dial(ctx, p.dir)
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return nil, p.ended()
	case errors.Is(err, unix.EAGAIN) && ctx.Err() == nil:
		return nil, ErrSilent
	}
	return nil, err
}

// dial connects to a keeper's socket. The directory may be longer than a
// socket address (108 bytes), so the path goes through a descriptor.
func dial(ctx context.Context, dir string) (*net.UnixConn, error) {
	path := filepath.Join(dir, "keeper.sock")
	if len(path) >= 108 {
		d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		path = "/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/keeper.sock"
	}
	connect := func() (*net.UnixConn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unixpacket", path)
		wait, waited := time.Millisecond, time.Duration(0)
		for ; errors.Is(err, unix.EAGAIN) && waited < answer; wait = min(2*wait, 100*time.Millisecond) {
			// Its queue of connections is full: unlike TCP, the kernel says so.
			waited += wait
			select {
			case <-ctx.Done():
				return nil, err
			case <-time.After(wait):
			}
			c, err = d.DialContext(ctx, "unixpacket", path)
		}
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	}
	c, err := connect()
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return relisten(ctx, dir, connect)
	}
	return c, err
}

// ended says what is known of a keeper that does not listen, or has hung up: ErrGone when its process has ended.
func (p *peer) ended() error {
	pidfd, err := p.ident.open()
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

// hello asks the keeper who it is.
func (p *peer) hello(ctx context.Context) (greeting, error) {
	m, err := p.call(ctx, opHello, nil)
	if err != nil {
		return greeting{}, err
	}
	return greetingOf(m), nil
}

// await sends its question and sleeps until there is an answer, or until the connection is cut, which the end of a
// keeper does.
func (p *peer) await(ctx context.Context) (greeting, error) {
	c, err := p.dial(ctx)
	if err != nil {
		return greeting{}, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	m, files, err := exchange(c, opHello, nil, nil)
	closeAll(files)
	switch {
	case ctx.Err() != nil:
		return greeting{}, ctx.Err()
	case errors.Is(err, ErrGone):
		return greeting{}, p.ended()
	case err != nil:
		return greeting{}, err
	}
	return greetingOf(m), nil
}

// call does one request on a connection of its own.
func (p *peer) call(ctx context.Context, o op, f fields) (message, error) {
	c, m, files, err := p.request(ctx, o, f)
	if err != nil {
		return message{}, err
	}
	closeAll(files)
	c.Close()
	return m, nil
}

// callSoon is for requests that a keeper answers at once, or never.
func (p *peer) callSoon(o op, f fields) error {
	_, err := p.call(context.Background(), o, f)
	return err
}

// request sends a request and reads its first answer; the connection stays
// open for what follows.
func (p *peer) request(
	ctx context.Context, o op, f fields, files ...*os.File,
) (*net.UnixConn, message, []*os.File, error) {
	c, err := p.dial(ctx)
	if err != nil {
		return nil, message{}, nil, err
	}
	// A deadline in the past wakes a blocked read; it is cleared after.
	wake := func() { _ = c.SetDeadline(time.Unix(1, 0)) }
	watched := p.guard(o, c, wake)
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { wake(); close(woken) })
	m, got, err := exchange(c, o, f, files)
	silent := watched()
	switch {
	case err == nil:
	case silent || errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil:
		err = ErrSilent
	case errors.Is(err, ErrGone):
		err = p.ended()
	}
	if !stop() {
		<-woken // or it could end what is sent below
		closeAll(got)
		got, err = nil, ctx.Err()
	}
	if o == opExec && err != nil && (errors.Is(err, ErrSilent) || ctx.Err() != nil) {
		// It may run, but the caller is told that it does not.
		_ = c.SetDeadline(time.Now().Add(time.Second))
		_ = sendSignal(c, unix.SIGKILL)
	}
	if err != nil {
		c.Close()
		return nil, message{}, nil, err
	}
	return c, m, got, nil
}

func exchange(c *net.UnixConn, o op, f fields, files []*os.File) (message, []*os.File, error) {
	if err := send(c, o, f, files...); err != nil {
		return message{}, nil, gone(err)
	}
	m, got, err := receive(c, make([]byte, 4096))
	if err != nil {
		return message{}, nil, gone(err)
	}
	switch m.op {
	case opOK:
		return m, got, nil
	case opError:
		closeAll(got)
		return message{}, nil, m.failure()
	}
	closeAll(got)
	return message{}, nil, fmt.Errorf("keeper answered with unexpected operation %d", m.op)
}

// failure is what an opError says.
func (m message) failure() error {
	if unix.Errno(m.u32(tagStatus)) == unix.ESRCH {
		return fmt.Errorf("%w: %s", ErrNotFound, m.text(tagText))
	}
	return errors.New(m.text(tagText))
}

// gone turns the ways in which a socket says that its other end died into one.
func gone(err error) error {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF) {
		return ErrGone
	}
	return err
}

// guard sees to it that an answer is not waited for without end. What it returns says, at the end, whether it was. Most
// questions are answered at once; what takes as long as it takes is waited for as long as the keeper answers others.
func (p *peer) guard(o op, c *net.UnixConn, cut func()) func() bool {
	switch o {
	case opRun, opExec, opAttach:
		return p.watchdog(cut)
	}
	_ = c.SetDeadline(time.Now().Add(answer))
	return func() bool {
		_ = c.SetDeadline(time.Time{})
		return false
	}
}

// watchdog asks the keeper whether it answers, every now and then, and calls cut when it does not. What it returns ends
// that and says whether it was so.
func (p *peer) watchdog(cut func()) func() bool {
	ctx, cancel := context.WithCancel(context.Background())
	silent := make(chan struct{})
	var t *time.Timer
	ready := make(chan struct{})
	t = time.AfterFunc(answer, func() {
		<-ready // t is set
		_, err := p.call(ctx, opHello, nil)
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

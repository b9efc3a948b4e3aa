package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// connection is one to systemd, over its own socket, so that no message bus need run.
type connection struct {
	bus *dbus.Conn
	// ended is closed when systemd has closed what it tells of the ends of jobs on.
	ended <-chan struct{}
}

// dial connects for as long as life goes on.
func dial(life context.Context) (*connection, error) {
	var last *godbus.Conn
	bus, err := dbus.NewConnection(func() (_ *godbus.Conn, err error) {
		last, err = private(life)
		return last, err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	return &connection{bus: bus, ended: last.Context().Done()}, nil // signals come on the second of two
}

// private is a connection on which nobody says hello, since there is no bus.
func private(life context.Context) (*godbus.Conn, error) {
	c, err := godbus.Dial("unix:path=/run/systemd/private", godbus.WithContext(life))
	if err != nil {
		return nil, err
	}
	if err := c.Auth([]godbus.Auth{godbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// deaf says that no end of a job is heard of any more. systemd closes a connection that is not read from, and does not
// close the other one.
func (c *connection) deaf() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// connect returns the connection, a new one if it is broken.
func (s *Driver) connect(ctx context.Context, broken *connection) (*connection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn != broken && !s.conn.deaf() {
		return s.conn, nil
	}
	// The connection outlives the call that needed it first, but that waits no longer than it would for an answer: the
	// kernel connects to a systemd that has crashed, too, and nobody ever speaks there.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	made := context.AfterFunc(ctx, end)
	c, err := dial(life)
	if !made() {
		if err == nil {
			c.bus.Close()
		}
		err = fmt.Errorf("connect to systemd: %w", ctx.Err())
	}
	if err != nil {
		end()
		return nil, err
	}
	if s.conn != nil {
		s.conn.bus.Close()
	}
	s.conn = c
	return c, nil
}

// do makes one call, again when the connection broke: systemd drops it when it re-executes itself.
func (s *Driver) do(ctx context.Context, call func(context.Context, *connection) error) error {
	select {
	case s.calls <- struct{}{}:
		defer func() { <-s.calls }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var broken *connection
	for {
		c, err := s.connect(ctx, broken)
		if err != nil {
			return err
		}
		err = call(ctx, c)
		if broken == nil && (errors.Is(err, godbus.ErrClosed) || err != nil && !c.bus.Connected()) {
			broken = c
			continue
		}
		return err
	}
}

// errEndUntold says that systemd has taken a job and closed the connection before it told of its end. It goes on with
// its jobs after it has executed itself anew, but tells nobody who was connected before.
var errEndUntold = errors.New("systemd has closed the connection before it told of the end of its job")

// job has systemd queue a job, and waits until that has ended.
func (s *Driver) job(ctx context.Context, verb, unit string,
	queue func(ctx context.Context, c *dbus.Conn, done chan<- string) error,
) error {
	done := make(chan string, 1)
	var ended <-chan struct{}
	err := s.do(ctx, func(ctx context.Context, c *connection) error {
		ended = c.ended
		return queue(ctx, c.bus, done)
	})
	if err != nil {
		return fmt.Errorf("%s unit %s: %w", verb, unit, err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("%s unit %s: the job has ended as %q", verb, unit, result)
		}
		return nil
	case <-ended:
		return fmt.Errorf("%s unit %s: %w", verb, unit, errEndUntold)
	case <-ctx.Done():
		return fmt.Errorf("%s unit %s: %w", verb, unit, ctx.Err())
	}
}

func isBusError(err error, name string) bool {
	var e godbus.Error
	return errors.As(err, &e) && e.Name == "org.freedesktop.systemd1."+name
}

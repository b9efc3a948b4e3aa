package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const (
	loginName      = "org.freedesktop.login1"
	loginPath      = "/org/freedesktop/login1"
	loginInterface = "org.freedesktop.login1.Manager"
)

// Login is a connection to the login manager, which asks before it shuts the machine down.
type Login struct {
	conn    *dbus.Conn
	manager dbus.BusObject
	signals chan *dbus.Signal
}

// DialLogin connects to the login manager on the system bus (or $DBUS_SYSTEM_BUS_ADDRESS) and listens to it.
func DialLogin(ctx context.Context) (*Login, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	l := &Login{conn: conn, manager: conn.Object(loginName, loginPath), signals: make(chan *dbus.Signal, 16)}
	conn.Signal(l.signals)
	if err := conn.AddMatchSignal(dbus.WithMatchInterface(loginInterface), dbus.WithMatchMember("PrepareForShutdown")); err != nil {
		conn.Close()
		return nil, fmt.Errorf("listen to the login manager: %w", err)
	}
	return l, nil
}

// Close ends the connection.
func (l *Login) Close() error { return l.conn.Close() }

// Inhibit makes a shutdown wait until the file is closed, at most as long as [Login.MaxDelay].
func (l *Login) Inhibit(ctx context.Context, who, why string) (*os.File, error) {
	var fd dbus.UnixFD
	if err := l.manager.CallWithContext(ctx, loginInterface+".Inhibit", 0, "shutdown", who, why, "delay").Store(&fd); err != nil {
		return nil, fmt.Errorf("inhibit shutdown: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}

// MaxDelay is how long a shutdown waits at most.
func (l *Login) MaxDelay() (time.Duration, error) {
	v, err := l.manager.GetProperty(loginInterface + ".InhibitDelayMaxUSec")
	if err != nil {
		return 0, fmt.Errorf("read how long a shutdown waits: %w", err)
	}
	usec, ok := v.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("read how long a shutdown waits: it is %s", v)
	}
	return time.Duration(usec) * time.Microsecond, nil
}

// Preparing says whether the machine is going to be shut down already. Nobody can make that wait any more.
func (l *Login) Preparing() (bool, error) {
	v, err := l.manager.GetProperty(loginInterface + ".PreparingForShutdown")
	if err != nil {
		return false, fmt.Errorf("read whether the machine is shut down: %w", err)
	}
	down, ok := v.Value().(bool)
	if !ok {
		return false, fmt.Errorf("read whether the machine is shut down: it is %s", v)
	}
	return down, nil
}

// Next waits for the login manager to say that the machine is going to be shut down (true), or is not after all
// (false).
func (l *Login) Next(ctx context.Context) (bool, error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-l.conn.Context().Done():
			return false, errors.New("the system bus has closed the connection")
		case s, ok := <-l.signals:
			if !ok {
				return false, errors.New("the system bus has closed the connection")
			}
			if s.Name != loginInterface+".PrepareForShutdown" || len(s.Body) != 1 {
				continue
			}
			if down, ok := s.Body[0].(bool); ok {
				return down, nil
			}
		}
	}
}

// DelayConf is the file by which a longer delay is asked for, in a directory of logind's configuration.
const DelayConf = "99-berth.conf"

// LoginConfDir is the directory of logind's configuration.
const LoginConfDir = "/etc/systemd/logind.conf.d"

// RaiseMaxDelay makes shutdowns wait for as long as is wanted, by a file in the directory. The login manager is told to
// read it, and does so in its own time.
func (l *Login) RaiseMaxDelay(ctx context.Context, dir string, want time.Duration) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("configure the login manager: %w", err)
	}
	seconds := int64((want + time.Second - 1) / time.Second)
	text := fmt.Sprintf("# Written by berth for --shutdown-grace-period.\n[Login]\nInhibitDelayMaxSec=%d\n", seconds)
	path := filepath.Join(dir, DelayConf)
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		return fmt.Errorf("configure the login manager: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("configure the login manager: %w", err)
	}
	manager := l.conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	call := manager.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0, "systemd-logind.service", "main", int32(unix.SIGHUP))
	if call.Err != nil {
		return fmt.Errorf("tell the login manager to read %s: %w", path, call.Err)
	}
	return nil
}

// Package systemdtest is a login manager on a bus of its own, for tests of what a shutdown waits for.
package systemdtest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
)

// Login is the login manager.
type Login struct {
	Address string          // of the bus
	Taken   chan *Inhibitor // each inhibitor when it is taken
	Reloads chan string     // each unit that was told to read its configuration
	conn    *dbus.Conn
	props   *prop.Properties
}

// Inhibitor is an inhibitor that somebody holds.
type Inhibitor struct {
	What, Who, Mode string
	Released        chan struct{} // closed when its holder has closed it, or has ended
}

const loginInterface = "org.freedesktop.login1.Manager"

const config = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><listen>unix:path=PATH</listen><auth>EXTERNAL</auth><policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`

// Start starts a bus and the login manager on it, whose shutdowns wait for as long as is said. It ends with the test.
func Start(t *testing.T, delay time.Duration) *Login {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		t.Skip("needs dbus-daemon")
	}
	dir := t.TempDir()
	conf, socket := filepath.Join(dir, "bus.conf"), filepath.Join(dir, "bus.sock")
	if err := os.WriteFile(conf, []byte(strings.Replace(config, "PATH", socket, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("dbus-daemon", "--config-file="+conf, "--nofork", "--print-address")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	l := &Login{Address: strings.TrimSpace(address), Taken: make(chan *Inhibitor, 10), Reloads: make(chan string, 10)}
	l.serve(t, delay)
	return l
}

func (l *Login) serve(t *testing.T, delay time.Duration) {
	t.Helper()
	conn, err := dbus.Connect(l.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	l.conn = conn
	const path = "/org/freedesktop/login1"
	if err := conn.Export(manager{l}, path, loginInterface); err != nil {
		t.Fatal(err)
	}
	if err := conn.Export(units{l}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"); err != nil {
		t.Fatal(err)
	}
	l.props, err = prop.Export(conn, path, prop.Map{loginInterface: {
		"InhibitDelayMaxUSec":  {Value: uint64(delay / time.Microsecond)},
		"PreparingForShutdown": {Value: false},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"org.freedesktop.login1", "org.freedesktop.systemd1"} {
		if _, err := conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil {
			t.Fatal(err)
		}
	}
}

// Shutdown says that the machine is going down, or not after all.
func (l *Login) Shutdown(t *testing.T, down bool) {
	t.Helper()
	l.props.SetMust(loginInterface, "PreparingForShutdown", down)
	if err := l.conn.Emit("/org/freedesktop/login1", loginInterface+".PrepareForShutdown", down); err != nil {
		t.Fatal(err)
	}
}

type manager struct{ l *Login }

// Inhibit hands out one end of a pipe, of which the other reads its end when the holder lets go.
func (m manager) Inhibit(what, who, _, mode string) (dbus.UnixFD, *dbus.Error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	i := &Inhibitor{What: what, Who: who, Mode: mode, Released: make(chan struct{})}
	go func() {
		defer close(i.Released)
		defer r.Close()
		_, _ = r.Read(make([]byte, 1))
	}()
	fd := dbus.UnixFD(w.Fd())
	// The bus duplicates it when the answer is sent, which is after this returns.
	time.AfterFunc(time.Second, func() { w.Close() })
	m.l.Taken <- i
	return fd, nil
}

type units struct{ l *Login }

// KillUnit takes the signal that makes a unit read its configuration.
func (u units) KillUnit(name, _ string, _ int32) *dbus.Error {
	u.l.Reloads <- name
	return nil
}

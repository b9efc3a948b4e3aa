package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// nobody is a user without privileges.
const nobody = 65534

// TestOwner has root run commands on the data directory of another user, as the service's is: they become that user,
// and nothing is left there that the service cannot read.
func TestOwner(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root becomes another user")
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chown(dir, nobody, nobody), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	p := start(t, dir)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t \n", "CapEff:\t0000000000000000\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
	p.run(t, "certs", "renew")
	p.run(t, "certs", "rotate-ca", "--begin")
	file := snapshot(t, p)
	p.stop(t)
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	p.run(t, "etcd", "restore", file)
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != nobody {
			t.Errorf("%s is of user %d", path, st.Uid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestNotify has the service manager told when the server is ready, and that it lives.
func TestNotify(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "400000")
	p := start(t, t.TempDir())
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for _, want := range []string{"READY=1\nSTATUS=serving", "WATCHDOG=1", "WATCHDOG=1"} {
		n, err := conn.Read(buf)
		if err != nil || string(buf[:n]) != want {
			t.Fatalf("told is %q, %v, want %q", buf[:n], err, want)
		}
	}
	p.stop(t)
}

package socket

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestListenAgain removes and replaces a socket. Who connects then is heard, who was connected before stays so, and the
// end leaves nobody waiting.
func TestListenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "s.sock")
	var full atomic.Bool
	l, err := Listen(path, slog.New(slog.DiscardHandler), func(context.Context) (Made, error) {
		if full.Swap(false) {
			return Made{}, syscall.EMFILE
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return Made{}, err
		}
		u, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + ".new", Net: "unix"})
		if err != nil {
			return Made{}, err
		}
		u.SetUnlinkOnClose(false)
		own, err := os.Lstat(path + ".new")
		return Made{u, own}, errors.Join(err, os.Rename(path+".new", path))
	})
	if err != nil {
		t.Fatal(err)
	}
	meet := func() (here, there net.Conn) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			there, err = net.Dial("unix", path)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		if here, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		return here, there
	}
	talk := func(here, there net.Conn) {
		t.Helper()
		b := make([]byte, 2)
		if _, err := here.Write([]byte("hi")); err != nil {
			t.Error(err)
		}
		if _, err := there.Read(b); err != nil || string(b) != "hi" {
			t.Errorf("heard %q, %v", b, err)
		}
	}
	if got := l.Addr().String(); got != path {
		t.Errorf("its address is %s", got)
	}
	first, old := meet()
	talk(first, old)
	for name, harm := range map[string]func() error{
		"removed": func() error { return os.Remove(path) },
		"removed when no other can be made at once": func() error {
			full.Store(true)
			return os.Remove(path)
		},
		"its directory removed": func() error {
			return errors.Join(os.Rename(filepath.Dir(path), filepath.Dir(path)+".gone"), os.RemoveAll(filepath.Dir(path)+".gone"))
		},
		"its directory moved": func() error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+".old") },
		"moved":               func() error { return os.Rename(path, path+".old") },
		"replaced":            func() error { return errors.Join(os.WriteFile(path+".x", nil, 0o600), os.Rename(path+".x", path)) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := harm(); err != nil {
				t.Fatal(err)
			}
			here, there := meet()
			talk(here, there)
			here.Close()
			there.Close()
			if full.Load() {
				t.Error("it was not asked to make one")
			}
		})
	}
	talk(first, old)
	first.Close()
	old.Close()
	waiting := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		waiting <- err
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waiting; !errors.Is(err, net.ErrClosed) {
		t.Errorf("who waited got %v", err)
	}
}

// TestCloseWhileMade closes a listener whose socket is being made again, which takes as long as it is allowed to.
func TestCloseWhileMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	begun := make(chan struct{})
	first := true
	l, err := Listen(path, slog.New(slog.DiscardHandler), func(ctx context.Context) (Made, error) {
		if !first {
			close(begun)
			<-ctx.Done()
			return Made{}, ctx.Err()
		}
		first = false
		u, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return Made{}, err
		}
		own, err := os.Lstat(path)
		return Made{u, own}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	<-begun
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

package cluster

import (
	"crypto"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPendingKey has a key that somebody else may know, or has planted.
func TestPendingKey(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(outside, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(path string) error{
		"link":      func(path string) error { return os.Symlink(outside, path) },
		"readable":  func(path string) error { return os.Chmod(path, 0o644) },
		"garbage":   func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"pipe":      func(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
		"huge":      func(path string) error { return os.Truncate(path, maxFile+1) },
		"hard link": func(path string) error { return errors.Join(os.Remove(path), os.Link(outside, path)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := &store{dir: filepath.Join(t.TempDir(), "pki"), name: "kubelet-client"}
			if name != "link" {
				if _, err := s.pending(); err != nil {
					t.Fatal(err)
				}
			} else if err := s.prepare(); err != nil {
				t.Fatal(err)
			}
			if err := plant(s.pendingPath()); err != nil {
				t.Fatal(err)
			}
			key, err := s.pending()
			if err != nil {
				t.Fatal(err)
			}
			st, err := os.Lstat(s.pendingPath())
			if err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", st, err)
			}
			again, err := s.pending()
			if err != nil || !again.Public().(interface{ Equal(x crypto.PublicKey) bool }).Equal(key.Public()) {
				t.Errorf("another key: %v", err)
			}
			if data, _ := os.ReadFile(outside); string(data) != "theirs" {
				t.Errorf("written through a link: %s", data)
			}
		})
	}
}

func TestOpenDirectory(t *testing.T) {
	s := &store{dir: t.TempDir(), name: "kubelet-client"}
	if err := os.Chmod(s.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pending(); err == nil || !strings.Contains(err.Error(), "others may write") {
		t.Error(err)
	}
}

// TestLinks has links where certificates are written.
func TestLinks(t *testing.T) {
	s := &store{dir: t.TempDir(), name: "kubelet-client"}
	outside := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(outside, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	path := filepath.Join(s.dir, "kubelet-client-"+now.Format("2006-01-02-15-04-05")+".pem")
	if err := errors.Join(os.Symlink(outside, path), os.WriteFile(s.currentPath(), []byte("a file"), 0o600)); err != nil {
		t.Fatal(err)
	}
	a, key := newAuthority(t), newKey(t)
	got, err := s.write(a.sign(client("n1", now, now.Add(time.Hour)), key.Public()), key, now)
	if err != nil || got != path {
		t.Fatal(got, err)
	}
	if err := s.use(got); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(outside); string(data) != "theirs" {
		t.Errorf("written through a link: %s", data)
	}
	if pair, err := s.current(); err != nil || pair == nil || !sameKey(key, &pair.Certificate) {
		t.Errorf("%v, %v", pair, err)
	}
}

// TestSameSecond: a certificate that is written in the second in which the one in use was, by a clock that was set back
// say, does not take its place before it is known to be good.
func TestSameSecond(t *testing.T) {
	s := &store{dir: t.TempDir(), name: "kubelet-client"}
	a, now := newAuthority(t), time.Now()
	had := newKey(t)
	path, err := s.write(a.sign(client("n1", now, now.Add(time.Hour)), had.Public()), had, now)
	if err == nil {
		err = s.use(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	next, err := s.write(a.sign(client("n1", now, now.Add(time.Hour)), key.Public()), key, now)
	if err != nil {
		t.Fatal(err)
	}
	if pair, err := s.current(); err != nil || pair == nil || !sameKey(had, &pair.Certificate) {
		t.Errorf("in use is another one: %v, %v", pair, err)
	}
	if err := os.Remove(next); err != nil {
		t.Fatal(err)
	}
	if pair, err := s.current(); err != nil || pair == nil || !sameKey(had, &pair.Certificate) {
		t.Errorf("none is in use any more: %v, %v", pair, err)
	}
}

// TestFullDisk bootstraps on a disk that is full, then read-only, and then has room.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s, n := newAPIServer(t), newNode(t)
	if err := os.Mkdir(n.cfg.CertDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("berth-test", n.cfg.CertDir, "tmpfs", 0, "size=64k,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(n.cfg.CertDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(n.cfg.CertDir, "filler")
	if err := os.WriteFile(filler, make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	n.bootstrap(s)
	n.start()
	says := func(what string) {
		t.Helper()
		until(t, what, func() error {
			if st := n.State(); !strings.Contains(st.Message, what) {
				return errors.New(st.Message)
			}
			return nil
		})
	}
	says("no space left")
	if len(s.asked()) != 0 {
		t.Error("a key that is not kept was used")
	}
	if err := errors.Join(os.Remove(filler), unix.Mount("", n.cfg.CertDir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	says("read-only")
	if err := unix.Mount("", n.cfg.CertDir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	n.connect()
	n.joined()
}

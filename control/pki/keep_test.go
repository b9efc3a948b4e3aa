package pki

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLook has who keeps copies of certificates told when they are renewed, again when that has failed, and not else.
func TestLook(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	s := open(t, dir, now)
	s.opts.Now = func() time.Time { return now }
	var times int
	var fails error
	changed := func() error { times++; return fails }
	if told := look(s, true, changed); !told || times > 0 {
		t.Errorf("nothing is renewed, and it is told %d times, %v", times, told)
	}
	now, fails = now.Add(leafLife*3/4), errors.New("the disk is full")
	told := look(s, true, changed)
	if told || times != 1 {
		t.Errorf("what is renewed is told %d times, %v", times, told)
	}
	fails = nil
	for range 2 {
		if told = look(s, told, changed); !told || times != 2 {
			t.Errorf("after it has failed it is told %d times, %v", times, told)
		}
	}
}

// TestNoDescriptors looks at certificates when nothing can be opened: all files stay as they are.
func TestNoDescriptors(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, time.Now())
	ca, err := readPair(s.Path(ClusterAuthority))
	if err != nil {
		t.Fatal(err)
	}
	before := read(t, s.Path(Serving))
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, lerr := s.Renew(false)
	_, err = s.due(leaves()[0], ca)
	qerr := s.quarantine()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{lerr, err, qerr} {
		if !errors.Is(err, unix.EMFILE) || strings.Contains(err.Error(), "begin anew") {
			t.Errorf("nothing can be opened: %v", err)
		}
	}
	if aside, err := filepath.Glob(filepath.Join(dir, "*.bad-*")); err != nil || len(aside) > 0 {
		t.Errorf("put aside: %q, %v", aside, err)
	}
	if !bytes.Equal(before, read(t, s.Path(Serving))) {
		t.Error("the certificate is another one")
	}
}

// TestManyWriters renews certificates by several stores of one directory at once, as commands beside a server do.
func TestManyWriters(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, time.Now())
	var wait sync.WaitGroup
	for range 4 {
		s := open(t, dir, time.Now())
		wait.Go(func() {
			for range 5 {
				if _, err := s.Renew(true); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	for _, e := range List(dir) {
		if e.Err != nil {
			t.Errorf("%s: %v", e.Name, e.Err)
		}
	}
}

// TestClockBehind opens a directory when the clock says a time before its authorities: nothing is signed then.
func TestClockBehind(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	s := open(t, dir, now)
	before := read(t, s.Path(Serving))
	early := now.Add(-time.Hour)
	_, err := Open(dir, Options{Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return early }})
	if err == nil || !strings.Contains(err.Error(), s.Path(ClusterAuthority)) || !strings.Contains(err.Error(), "set the clock") {
		t.Errorf("the clock is an hour behind: %v", err)
	}
	if !bytes.Equal(before, read(t, s.Path(Serving))) {
		t.Error("the certificate is another one")
	}
}

package etcd

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func start(t *testing.T, dir string) (*Member, *clientv3.Client) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	m, err := Start(t.Context(), Options{Dir: filepath.Join(dir, "etcd"), RunDir: filepath.Join(dir, "run"), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Connect(Servers{Endpoints: []string{m.Endpoint()}}, log)
	if err != nil {
		t.Fatal(err)
	}
	return m, c
}

// TestMember writes, stops, starts and reads, with nobody else let in.
func TestMember(t *testing.T) {
	dir := t.TempDir()
	m, c := start(t, dir)
	if _, err := c.Put(t.Context(), "/a", "b"); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"etcd", "run"} {
		if info, err := os.Stat(filepath.Join(dir, d)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", d, info.Mode(), err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	m.Stop()
	m, c = start(t, dir)
	got, err := c.Get(t.Context(), "/a")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "b" {
		t.Errorf("after a restart: %v, %v", got, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	m.Stop()
	if _, err := os.Stat(SocketPath(filepath.Join(dir, "run"))); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// TestSocketRemoved takes away the socket, and its directory, of a member that runs: clients that come later find one.
func TestSocketRemoved(t *testing.T) {
	dir := t.TempDir()
	m, c := start(t, dir)
	defer m.Stop()
	defer c.Close()
	for _, gone := range []string{SocketPath(filepath.Join(dir, "run")), filepath.Join(dir, "run")} {
		if err := os.Rename(gone, filepath.Join(t.TempDir(), "away")); err != nil {
			t.Fatal(err)
		}
		later, err := Connect(Servers{Endpoints: []string{m.Endpoint()}}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if _, err := later.Put(ctx, "/a", gone); err != nil {
			t.Errorf("%s was removed: %v", gone, err)
		}
		cancel()
		if err := later.Close(); err != nil {
			t.Error(err)
		}
		if _, err := c.Put(t.Context(), "/a", "who has come before"); err != nil {
			t.Error(err)
		}
	}
}

func TestLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("a", maxSocketPath))
	if _, err := Start(t.Context(), Options{Dir: dir, RunDir: dir, Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("a socket that cannot be: %v", err)
	}
}

// TestIdentify reads whose store it is that nobody has open, also of one whose database is to be made from the log.
func TestIdentify(t *testing.T) {
	dir := t.TempDir()
	if _, err := Identify(filepath.Join(dir, "etcd")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no store: %v", err)
	}
	m, c := start(t, dir)
	id := m.etcd.Server.MemberID().String()
	end(t, m, c)
	if i, err := Identify(filepath.Join(dir, "etcd")); err != nil || i != (Identity{Name: FirstName}) {
		t.Errorf("got %+v, %v", i, err)
	}
	if err := os.Remove(databaseIn(filepath.Join(dir, "etcd"))); err != nil {
		t.Fatal(err)
	}
	if i, err := Identify(filepath.Join(dir, "etcd")); err != nil || i.Name != FirstName+"-"+id {
		t.Errorf("without a database: %+v, %v", i, err)
	}
}

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi"
)

// TestBackoff doubles from half a second to two minutes and two seconds.
func TestBackoff(t *testing.T) {
	h := newHouse(t)
	now := time.Unix(1000, 0)
	h.ledger.now = func() time.Time { return now }
	want := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}
	for i := range 12 {
		_, err := h.Publish(t.Context(), h.request("a", "none"))
		if csi.CodeOf(err) != codes.NotFound {
			t.Fatal(err)
		}
		h.driver.said()
		_, err = h.Publish(t.Context(), h.request("a", "none"))
		var b *Backoff
		if !errors.As(err, &b) || i < len(want) && b.Until.Sub(now) != want[i] || i == 11 && b.Until.Sub(now) != retryMax {
			t.Fatalf("%d: %v, %v", i, err, b)
		}
		h.called("")
		now = b.Until
	}
	h.volume("none")
	h.publish(h.request("a", "none"))
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestCancelled: who gives up waits for nobody, and makes nobody wait.
func TestCancelled(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	called, let := make(chan bool, 2), make(chan bool)
	h.driver.fail(func(ctx context.Context, m string) error {
		if m == "NodeStageVolume" {
			called <- true
			select {
			case <-let:
			case <-ctx.Done():
			}
		}
		return nil
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := h.Publish(ctx, h.request("a", "v"))
		first <- err
	}()
	<-called
	waits, giveUp := context.WithCancel(t.Context())
	giveUp()
	if _, err := h.Publish(waits, h.request("b", "v")); !errors.Is(err, context.Canceled) {
		t.Errorf("who waits: %v", err)
	}
	h.volume("w")
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) || csi.Final(err) {
		t.Errorf("who is called for: %v", err)
	}
	close(let)
	h.publish(h.request("a", "v"))
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestMany has many pods with a volume each at once, and many that share one.
func TestMany(t *testing.T) {
	h := newHouse(t)
	var wait sync.WaitGroup
	h.volume("shared")
	for i := range 30 {
		uid, id := fmt.Sprintf("p%d", i), fmt.Sprintf("v%d", i)
		h.volume(id)
		for _, r := range []Request{h.request(uid, id), h.request(uid, "shared")} {
			wait.Go(func() {
				if _, err := h.Publish(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wait.Wait()
	if got := strings.Count(h.driver.said(), "NodeStageVolume"); got != 31 || h.Count(driverName) != 31 {
		t.Errorf("staged %d times", got)
	}
	for i := range 30 {
		wait.Go(func() {
			if err := h.Release(t.Context(), h.podDir(fmt.Sprintf("p%d", i))); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	h.nothing()
}

// TestDead has a volume's file system never answer: nobody but its own release waits for it, and that is given up.
func TestDead(t *testing.T) {
	h := newHouse(t, func(d *dirDriver) { d.node = nil })
	h.volume("w")
	r := h.request("a", "dead")
	path := h.ledger.layout.target(false, r.PodDir, r.Pod.UID, r.Name)
	fuse := -1
	h.driver.fail(nil, func(_ context.Context, m string) error {
		if m != "NodePublishVolume" || fuse >= 0 {
			return nil
		}
		must(t, unix.Unmount(path, 0))
		fuse = mountDead(t, path)
		return nil
	})
	must(t, os.MkdirAll(h.driver.source("dead"), 0o755))
	must(t, os.WriteFile(h.driver.source("dead")+"/precious", []byte("data"), 0o600))
	h.publish(r)
	if s := h.List(); len(s) != 1 || !s[0].Uses[0].Published {
		t.Errorf("there is %+v", s)
	}
	if h.publish(r) != path {
		t.Error("the path is another one")
	}
	h.open("")
	if h.publish(r) != path { // what the driver has mounted there is not asked whether it is there
		t.Error("the path is another one")
	}
	if found, err := h.Check(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("found %v, %v", found, err)
	}
	h.publish(h.request("b", "w"))
	must(t, h.Release(t.Context(), h.podDir("b")))
	// The driver does not come to an end with it, and then says that it has, with all left as it is.
	stuck := make(chan bool)
	h.driver.fail(func(ctx context.Context, m string) error {
		if m == "NodeUnpublishVolume" {
			select {
			case <-stuck:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		return nil
	}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := h.Release(ctx, h.podDir("a")); csi.Final(err) || err == nil {
		t.Errorf("error is %v", err)
	}
	close(stuck)
	h.driver.fail(nil, nil)
	must(t, unix.Close(fuse)) // and its server ends
	h.open("")
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// mountDead mounts a file system whose server never answers.
func mountDead(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	must(t, unix.Mount("dead", path, "fuse.dead", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	return fd
}

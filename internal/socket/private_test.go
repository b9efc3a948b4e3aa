package socket

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLockedByOthers has somebody keep the directory of the socket locked: who makes the socket may give up.
func TestLockedByOthers(t *testing.T) {
	dir := t.TempDir()
	other, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, err := private(gone, filepath.Join(dir, "s.sock")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
}

// Of many that start at once one wins, and the others say why they did not.
func TestOneListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []net.Listener
	for range 20 {
		wg.Go(func() {
			l, err := private(t.Context(), path)
			if err == nil {
				mu.Lock()
				won = append(won, l.Listener)
				mu.Unlock()
			} else if !errors.Is(err, ErrInUse) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Errorf("%d listen", len(won))
	}
	for _, l := range won {
		l.Close()
	}
}

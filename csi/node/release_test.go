package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBusy: a volume that somebody uses is not undone, and is when nobody does any more.
func TestBusy(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	path := h.publish(h.request("a", "v"))
	f, err := os.Open(filepath.Join(path, "precious"))
	must(t, err)
	if err := h.Release(t.Context(), h.podDir("a")); err == nil {
		t.Error("it is released")
	}
	f.Close()
	h.open("")
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestLeft: a driver that leaves its mount has it unmounted, and data that it leaves in the directory are not removed.
func TestLeft(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	path := h.publish(h.request("a", "v"))
	h.driver.fail(nil, func(_ context.Context, m string) error {
		if m == "NodeUnpublishVolume" {
			must(t, os.MkdirAll(path, 0o750))
			return bind(h.driver.source("v"), path)
		}
		return nil
	})
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
	path = h.publish(h.request("a", "v"))
	h.driver.fail(nil, func(_ context.Context, m string) error {
		if m == "NodeUnpublishVolume" {
			must(t, os.MkdirAll(path, 0o750))
			return os.WriteFile(path+"/file", nil, 0o600)
		}
		return nil
	})
	if err := h.Release(t.Context(), h.podDir("a")); !errors.Is(err, unix.ENOTEMPTY) || !strings.Contains(err.Error(), "moved or removed") {
		t.Errorf("error is %v", err)
	}
	h.driver.fail(nil, nil)
	must(t, os.Remove(path+"/file"))
	h.open("")
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

package node

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestDetachSecret wants the controller to have the Secret of an attachment when it takes it back, after a restart too,
// and no record to have what is in it.
func TestDetachSecret(t *testing.T) {
	h := newHouse(t, func(d *dirDriver) {
		d.ctrl = []spec.ControllerServiceCapability_RPC_Type{spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	})
	h.volume("v")
	key := map[string]string{"key": "hush-hush"}
	r := h.request("a", "v")
	r.Secrets.ControllerPublish, r.AttachSecret = key, SecretRef{"default", "of-v"}
	h.publish(r)
	h.open("")
	files, err := filepath.Glob(filepath.Join(h.root, "csi", "*"))
	must(t, err)
	for _, f := range files {
		if data, _ := os.ReadFile(f); strings.Contains(string(data), "hush") {
			t.Errorf("%s has the secret", f)
		}
	}
	missing := errors.New("there is none any more")
	h.cfg.Secret = func(SecretRef) (map[string]string, error) { return nil, missing }
	h.driver.mu.Lock()
	h.driver.before = func(_ context.Context, method string) error {
		if method == "ControllerUnpublishVolume" {
			return status.Error(codes.InvalidArgument, "no key")
		}
		return nil
	}
	h.driver.mu.Unlock()
	if err := h.Release(t.Context(), h.podDir("a")); !errors.Is(err, missing) || !strings.Contains(err.Error(), "no key") {
		t.Fatalf("got %v", err)
	}
	h.driver.mu.Lock()
	h.driver.before = nil
	h.driver.mu.Unlock()
	h.open("") // which tries at once
	h.cfg.Secret = func(of SecretRef) (map[string]string, error) {
		if of != (SecretRef{"default", "of-v"}) {
			t.Errorf("secret %v is read", of)
		}
		return key, nil
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	if got := h.driver.last("ControllerUnpublishVolume").(*spec.ControllerUnpublishVolumeRequest).Secrets; !maps.Equal(got, key) {
		t.Errorf("the driver has %v", got)
	}
	h.nothing()
}

// TestBlockRecordLost wants a block device to be undone whose record is lost, by what is beside it.
func TestBlockRecordLost(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	for _, pod := range []string{"a", "b"} {
		r := h.request(pod, "v")
		r.Block, r.AccessMode = true, ReadWriteMany
		h.publish(r)
	}
	records, err := filepath.Glob(filepath.Join(h.root, "csi", "*"))
	must(t, err)
	for _, path := range records {
		must(t, os.Remove(path))
	}
	h.open("")
	if users := h.Users(driverName, "v"); len(users) != 2 {
		t.Fatalf("users are %v", users)
	}
	h.driver.said()
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.called("NodeUnpublishVolume")
	must(t, h.Release(t.Context(), h.podDir("b")))
	h.called("NodeUnpublishVolume NodeUnstageVolume")
	h.nothing()
	if left, _ := filepath.Glob(filepath.Join(h.root, "plugins/kubernetes.io/csi/volumeDevices/*/*")); len(left) > 0 {
		t.Errorf("there is still %q", left)
	}
}

package local

import (
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// A volume that is full is made larger by what there is room for: what it has itself is not taken from others.
func TestExpandFullVolume(t *testing.T) {
	r, _ := smallDisk(t, "tmpfs")
	id, other := r.create(request("n", typeLoop, block(), 4<<20)), r.create(request("other", typeLoop, block(), 1<<20))
	image := r.driver.backends.images.Path(id)
	must(t, os.WriteFile(image, make([]byte, 4<<20), 0o600))
	expand := func(bytes int64) error {
		_, err := r.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		})
		return err
	}
	wantCode(t, expand(8<<20), codes.ResourceExhausted, "can still be promised")
	must(t, expand(6<<20))
	must(t, r.remove(id))
	must(t, r.remove(other))
}

// While a snapshot is being copied, what it will take is promised to nobody else.
func TestSnapshotIsPromised(t *testing.T) {
	r, _ := smallDisk(t, "tmpfs")
	id := r.create(request("n", typeLoop, block(), 3<<20))
	must(t, os.WriteFile(r.driver.backends.images.Path(id), make([]byte, 3<<20), 0o600))
	left := func() int64 {
		n, err := r.driver.space.available(t.Context(), typeLoop, "")
		must(t, err)
		return n
	}
	before, during := left(), int64(-1)
	r.driver.records.step = func(name string) {
		if name == "copy" {
			during = left()
		}
	}
	made, err := r.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	must(t, err)
	if during < 0 || during > before-3<<20 {
		t.Errorf("before there were %d bytes to promise, and while the snapshot of %d is copied %d", before, 3<<20, during)
	}
	_, err = r.controller.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: made.Snapshot.SnapshotId})
	must(t, err)
	must(t, r.remove(id))
}

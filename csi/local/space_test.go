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

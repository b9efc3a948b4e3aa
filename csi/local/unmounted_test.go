package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/internal/mount"
)

// ownDisk mounts a small file system of the test at path, which no other depends on.
func ownDisk(t *testing.T, path, fsType, size string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts file systems")
	}
	must(t, os.MkdirAll(path, 0o700))
	image := path + ".disk"
	for _, c := range [][]string{{"truncate", "-s", size, image}, {"mkfs." + fsType, "-q", image}, {"mount", "-o", "loop", image, path}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", c, err, out)
		}
	}
	t.Cleanup(func() { _ = mount.UnmountUnder(path) })
}

// thawed has a file system be written to again, and says whether it was frozen.
func thawed(t *testing.T, path string) bool {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	return unix.IoctlSetInt(fd, fiThaw, 0) == nil
}

// Where a volume was staged and somebody has unmounted it, the file system that the place is on is the machine's: it is
// not frozen for a snapshot, which may have to be written to it.
func TestSnapshotOfUnmounted(t *testing.T) {
	dir := t.TempDir()
	outer := filepath.Join(dir, "outer")
	ownDisk(t, outer, "ext4", "16M")
	r := rigOn(t, t.TempDir())
	c := mounted("ext4")
	id := r.create(request("n", typeLoop, c, 4<<20))
	at := filepath.Join(outer, "staging")
	_, err := r.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: at, VolumeCapability: c})
	must(t, err)
	_, err = r.node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: at, TargetPath: r.target("a"), VolumeCapability: c,
	})
	must(t, err)
	must(t, mount.Unmount(at))
	frozen := false
	r.driver.records.step = func(name string) {
		if name == "copy" || name == "thaw" {
			frozen = thawed(t, outer) || frozen
		}
	}
	take := func(name string) error {
		_, err := r.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: id})
		return err
	}
	wantCode(t, take("used"), codes.FailedPrecondition, "mounted at "+r.target("a"))
	must(t, r.unpublish(id, "a"))
	must(t, take("unused"))
	if frozen {
		t.Error("the file system was frozen that the volume was staged on")
	}
	_, err = r.node.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: at})
	must(t, err)
	must(t, r.remove(id))
}

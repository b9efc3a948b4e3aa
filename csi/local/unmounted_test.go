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

// What was unmounted by somebody is not made larger, and not taken for larger: the place is on another file system.
func TestExpandUnmounted(t *testing.T) {
	dir := t.TempDir()
	outer := filepath.Join(dir, "outer")
	ownDisk(t, outer, "btrfs", "128M")
	must(t, os.Truncate(outer+".disk", 160<<20))
	device := tool(t, "findmnt", "-n", "-o", "SOURCE", outer)
	tool(t, "losetup", "--set-capacity", device)
	size := func(path string) int64 {
		var st unix.Statfs_t
		must(t, unix.Statfs(path, &st))
		return int64(st.Blocks) * st.Bsize
	}
	before := size(outer)
	r := rigOn(t, t.TempDir())
	c := mounted("btrfs")
	id := r.create(request("n", typeLoop, c, 128<<20))
	at := filepath.Join(outer, "staging")
	stage := &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: at, VolumeCapability: c}
	_, err := r.node.NodeStageVolume(t.Context(), stage)
	must(t, err)
	_, err = r.node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: at, TargetPath: r.target("a"), VolumeCapability: c,
	})
	must(t, err)
	must(t, mount.Unmount(at))
	_, err = r.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 256 << 20},
	})
	must(t, err)
	expand := &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: r.target("a")}
	_, err = r.node.NodeExpandVolume(t.Context(), expand)
	wantCode(t, err, codes.FailedPrecondition, "staged again")
	if after := size(outer); after != before {
		t.Errorf("the file system that it was staged on has %d bytes, and had %d", after, before)
	}
	_, err = r.node.NodeStageVolume(t.Context(), stage)
	must(t, err)
	_, err = r.node.NodeExpandVolume(t.Context(), expand)
	must(t, err)
	if has := size(r.target("a")); has != 256<<20 {
		t.Errorf("the volume has %d bytes", has)
	}
	must(t, r.unpublish(id, "a"))
	_, err = r.node.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: at})
	must(t, err)
	must(t, r.remove(id))
}

// Where something else is mounted a volume is not staged, nor is that taken for it, nor unmounted.
func TestStageOverOther(t *testing.T) {
	r := newRig(t)
	c := mounted("ext4")
	first := r.create(request("first", typeLoop, c, 4<<20))
	r.up(first, "a", c)
	write(t, filepath.Join(r.target("a"), "f"), "data of the first")
	link := filepath.Join(r.dir, "link")
	must(t, os.Mkdir(filepath.Join(r.dir, "elsewhere"), 0o700))
	must(t, os.Symlink("elsewhere", link))
	for _, q := range []*csi.CreateVolumeRequest{
		request("loop", typeLoop, c, 4<<20), request("directory", typeDirectory, mounted(""), 4<<20),
	} {
		c, id := q.VolumeCapabilities[0], r.create(q)
		for path, why := range map[string]string{r.staging(first): "something else is mounted", link: "is a link"} {
			_, err := r.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: path, VolumeCapability: c})
			wantCode(t, err, codes.FailedPrecondition, why)
			_, err = r.node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
				VolumeId: id, StagingTargetPath: path, TargetPath: r.target("b"), VolumeCapability: c,
			})
			wantCode(t, err, codes.FailedPrecondition, "not staged")
			_, err = r.node.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path})
			must(t, err)
		}
		must(t, r.remove(id))
	}
	if mounted, err := mount.Is(r.staging(first)); err != nil || !mounted {
		t.Errorf("the first volume is not mounted any more: %v", err)
	}
	r.down(first, "a")
	must(t, r.remove(first))
}

package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// tool runs a program of the node that a test needs, and skips the test where it is missing.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("needs %s", name)
	}
	out, err := exec.Command(name, args...).CombinedOutput() // the test's context may have ended
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// needMapper skips a test on a kernel without device mapper.
func needMapper(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts file systems")
	}
	_ = exec.Command("modprobe", "dm-mod").Run() // where it is built in there is no module
	misc, err := os.ReadFile("/proc/misc")
	if err != nil || !strings.Contains(string(misc), "device-mapper") {
		t.Skip("this kernel has no device mapper: to be run in a virtual machine")
	}
}

// An encrypted volume is read by who has the passphrase alone, and nothing of what is in it is on the disk in clear.
func TestLUKS(t *testing.T) {
	needMapper(t)
	if _, err := exec.LookPath("cryptsetup"); err != nil {
		t.Skip("needs cryptsetup")
	}
	r, c := newRig(t), mounted("ext4")
	q := request("n", typeLoop, c, 64<<20)
	q.Parameters["encryption"] = "luks"
	id := r.create(q)
	stage := func(passphrase string) error {
		_, err := r.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: id, StagingTargetPath: r.staging(id), VolumeCapability: c, Secrets: map[string]string{"passphrase": passphrase},
		})
		return err
	}
	wantCode(t, stage(""), codes.InvalidArgument, "passphrase")
	must(t, stage("right"))
	must(t, r.publish(id, "a", c, false))
	write(t, filepath.Join(r.target("a"), "f"), strings.Repeat("plain text ", 1000))
	r.restart()
	_, err := r.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 128 << 20},
	})
	must(t, err)
	_, err = r.node.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: id, VolumePath: r.target("a"), Secrets: map[string]string{"passphrase": "right"},
	})
	must(t, err)
	var st unix.Statfs_t
	must(t, unix.Statfs(r.target("a"), &st))
	if has := int64(st.Blocks) * st.Bsize; has < 90<<20 {
		t.Errorf("the file system has %d bytes", has)
	}
	r.down(id, "a")
	if err := stage("wrong"); err == nil {
		t.Error("a wrong passphrase opens it")
	} else if strings.Contains(err.Error(), "wrong") {
		t.Errorf("the passphrase is told: %v", err)
	}
	image, err := os.ReadFile(filepath.Join(r.dir, "data", "images", id))
	must(t, err)
	if strings.Contains(string(image), "plain text") {
		t.Error("what was written is on the disk in clear")
	}
	must(t, stage("right"))
	must(t, r.publish(id, "a", c, false))
	wantText(t, filepath.Join(r.target("a"), "f"), strings.Repeat("plain text ", 1000))
	r.down(id, "a")
	if _, err := os.Stat(r.driver.backends.vault.path(id)); err == nil {
		t.Error("the device is left open")
	}
	must(t, r.remove(id))
}

// thinPool is a volume group with a thin pool.
func thinPool(t *testing.T) (group string) {
	t.Helper()
	needMapper(t)
	for _, name := range []string{"lvcreate", "thin_check"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s", name)
		}
	}
	image := filepath.Join(t.TempDir(), "disk")
	write(t, image, "")
	must(t, os.Truncate(image, 2<<30))
	device := tool(t, "losetup", "--find", "--show", image)
	t.Cleanup(func() { tool(t, "losetup", "--detach", device) })
	group = fmt.Sprintf("berthtest%d", os.Getpid()) // others may test on this machine
	tool(t, "vgcreate", "--yes", group, device)
	t.Cleanup(func() { tool(t, "vgremove", "--yes", "--force", group) })
	tool(t, "lvcreate", "--yes", "--type=thin-pool", "--size=1g", "--name=berth", group)
	return group
}

// Volumes of LVM go the same way as all others.
func TestLVM(t *testing.T) {
	group := thinPool(t)
	r := newRig(t)
	r.stop()
	r.group = group
	r.start()
	c := mounted("ext4")
	id := r.create(request("n", typeLVM, c, 64<<20))
	r.up(id, "a", c)
	write(t, filepath.Join(r.target("a"), "f"), "before")
	shot, err := r.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	must(t, err)
	write(t, filepath.Join(r.target("a"), "f"), "after")
	_, err = r.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 128 << 20},
	})
	must(t, err)
	_, err = r.node.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: r.target("a")})
	must(t, err)
	q := request("restored", typeLVM, c, 64<<20)
	q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: shot.Snapshot.SnapshotId},
	}}
	restored := r.create(q)
	r.up(restored, "b", c)
	wantText(t, filepath.Join(r.target("b"), "f"), "before")
	r.restart()
	r.down(restored, "b")
	r.down(id, "a")
	_, err = r.controller.CreateVolume(t.Context(), request("large", typeLVM, c, 4<<30))
	wantCode(t, err, codes.ResourceExhausted, "promised")
	raw := r.create(request("raw", typeLVM, block(), 8<<20))
	r.up(raw, "c", block())
	r.down(raw, "c")
	for _, one := range []string{id, restored, raw} {
		must(t, r.remove(one))
	}
	_, err = r.controller.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: shot.Snapshot.SnapshotId})
	must(t, err)
	if left := tool(t, "lvs", "--noheadings", "-o", "lv_name", group); left != "berth" {
		t.Errorf("logical volumes left: %q", left)
	}
}

// onDisk is a directory on a file system of its own.
func onDisk(t *testing.T, fsType, options string, mkfs ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts file systems")
	}
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "at")
	write(t, image, "")
	must(t, os.Truncate(image, 1<<30))
	tool(t, "mkfs."+fsType, append(mkfs, "-q", image)...)
	must(t, os.Mkdir(at, 0o755))
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop"+options, image, at).CombinedOutput(); err != nil {
		t.Skipf("this kernel does not mount %s%s: %v: %s", fsType, options, err, out)
	}
	t.Cleanup(func() { must(t, unix.Unmount(at, 0)) })
	dir = filepath.Join(at, "dir")
	must(t, os.Mkdir(dir, 0o755))
	return dir
}

// A directory takes no more than it was given, where the file system limits projects, until it is given more.
func TestDirectoryQuota(t *testing.T) {
	for fsType, mkfs := range map[string][]string{"ext4": {"-O", "quota,project", "-E", "quotatype=prjquota"}, "xfs": nil} {
		t.Run(fsType, func(t *testing.T) {
			r, c := rigOn(t, onDisk(t, fsType, ",prjquota", mkfs...)), mounted("")
			q := request("n", typeDirectory, c, 4<<20)
			q.Parameters["quota"] = "required"
			id := r.create(q)
			r.up(id, "a", c)
			fill := func() int64 {
				f, err := os.OpenFile(filepath.Join(r.target("a"), "f"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
				must(t, err)
				defer f.Close()
				cmd := exec.CommandContext(t.Context(), "setpriv", "--reuid=1000", "--clear-groups", "dd", "if=/dev/zero", "bs=64k", "count=500")
				cmd.Stdout = f
				_ = cmd.Run()
				st, err := f.Stat()
				must(t, err)
				return st.Size()
			}
			if got := fill(); got > 4<<20 || got < 3<<20 {
				t.Errorf("%d bytes fit", got)
			}
			_, err := r.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 8 << 20},
			})
			must(t, err)
			if got := fill(); got > 8<<20 || got < 7<<20 {
				t.Errorf("%d bytes fit after it was expanded", got)
			}
			r.down(id, "a")
			must(t, r.remove(id))
		})
	}
}

// Where nothing limits a directory, who insists on that is told, and who does not is told when there is too much in it.
func TestDirectoryWithoutQuota(t *testing.T) {
	r, c := newRig(t), mounted("")
	q := request("n", typeDirectory, c, 1<<20)
	q.Parameters["quota"] = "required"
	if _, err := r.controller.CreateVolume(t.Context(), q); err == nil {
		t.Skip("the file system of the test has project quotas")
	} else {
		wantCode(t, err, codes.FailedPrecondition, "prjquota")
	}
	made, err := r.controller.CreateVolume(t.Context(), request("n", typeDirectory, c, 1<<20))
	must(t, err)
	if made.Volume.VolumeContext["quota"] != "none" {
		t.Errorf("got %v", made.Volume)
	}
	id := made.Volume.VolumeId
	r.up(id, "a", c)
	write(t, filepath.Join(r.target("a"), "f"), strings.Repeat("x", 2<<20))
	health, err := r.node.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id, VolumePublishPath: r.target("a")})
	must(t, err)
	if s := health.VolumeHealth.HealthStatuses; len(s) != 1 || s[0].Reason != "OverCapacity" {
		t.Errorf("got %v", health)
	}
	r.down(id, "a")
	must(t, r.remove(id))
}

// On a file system that shares blocks, snapshots of what is in use take no time and no space.
func TestSharing(t *testing.T) {
	for _, fsType := range []string{"xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			r := rigOn(t, onDisk(t, fsType, ""))
			for _, kind := range []struct {
				kind string
				c    *csi.VolumeCapability
			}{{typeLoop, mounted("ext4")}, {typeLoop, block()}, {typeDirectory, mounted("")}} {
				if kind.kind == typeDirectory && fsType != "btrfs" {
					continue
				}
				id := r.create(request("n"+kind.kind, kind.kind, kind.c, 16<<20))
				r.up(id, "a", kind.c)
				if kind.c.GetMount() != nil {
					write(t, filepath.Join(r.target("a"), "f"), "before")
				}
				shot, err := r.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
				must(t, err)
				if s, err := r.driver.records.snaps.Get(shot.Snapshot.SnapshotId); err != nil || !s.Shared {
					t.Errorf("%s: %+v, %v", kind.kind, s, err)
				}
				q := request("restored"+kind.kind, kind.kind, kind.c, 16<<20)
				q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
					Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: shot.Snapshot.SnapshotId},
				}}
				restored := r.create(q)
				r.up(restored, "b", kind.c)
				if kind.c.GetMount() != nil {
					wantText(t, filepath.Join(r.target("b"), "f"), "before")
				}
				r.down(restored, "b")
				r.down(id, "a")
				must(t, errors.Join(r.remove(id), r.remove(restored)))
				_, err = r.controller.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: shot.Snapshot.SnapshotId})
				must(t, err)
			}
		})
	}
}

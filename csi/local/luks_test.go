package local

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// fakeMapper has the programs that open encrypted devices name the device below as udev does: by a link that is
// relative. What they do to the bytes is no matter here.
func fakeMapper(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "mapper")
	must(t, os.Mkdir(dir, 0o700))
	bin := t.TempDir()
	for name, script := range map[string]string{
		"cryptsetup": `while [ "${1#--}" != "$1" ]; do shift; done
case $1 in
open) ln -s "../$(basename "$3")" "` + dir + `/$4" && ln -sf "$3" "` + filepath.Dir(dir) + `/" ;;
close) rm "` + dir + `/$2" ;;
esac`,
		"dmsetup": `mv "` + dir + `/$2" "` + dir + `/$3"`,
	} {
		must(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return dir
}

func (r *rig) stageLocked(id string, c *csi.VolumeCapability) {
	r.t.Helper()
	_, err := r.node.NodeStageVolume(r.t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: r.staging(id), VolumeCapability: c, Secrets: map[string]string{"passphrase": "right"},
	})
	must(r.t, err)
}

// A pod gets the device of an encrypted volume also where the name of the device is a link.
func TestLUKSBlockByLink(t *testing.T) {
	r := newRig(t)
	r.driver.backends.vault.dir = fakeMapper(t)
	q := request("n", typeLoop, block(), 4<<20)
	q.Parameters["encryption"] = "luks"
	id := r.create(q)
	r.stageLocked(id, block())
	must(t, r.publish(id, "a", block(), false))
	var st unix.Stat_t
	if err := unix.Lstat(r.target("a"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		t.Errorf("the pod gets %o, %v, and no device", st.Mode, err)
	}
	r.down(id, "a")
	must(t, r.remove(id))
}

// The device that a driver has opened before it had names by data directory is the volume's for this one, while a pod
// has it; that of the volume of another data directory is not.
func TestLUKSOpenedByEarlier(t *testing.T) {
	r := newRig(t)
	v := &r.driver.backends.vault
	v.dir, v.sys = fakeMapper(t), t.TempDir()
	c := mounted("ext4")
	q := request("n", typeLoop, c, 4<<20)
	q.Parameters["encryption"] = "luks"
	id := r.create(q)
	r.stageLocked(id, c)
	must(t, r.publish(id, "a", c, false))
	must(t, os.Rename(v.path(id), filepath.Join(v.dir, earlier(id))))
	next := &recovery{records: r.driver.records, backends: r.driver.backends, log: slog.New(slog.DiscardHandler)}
	next.adopt(context.Background())
	if open, err := v.isOpen(id); open || err != nil {
		t.Errorf("what is on no device of the volume is taken for its own: %v", err)
	}
	below, err := r.driver.backends.images.Device(t.Context(), id)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(below, &st))
	slaves := filepath.Join(v.sys, "dev/block", fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), "slaves")
	must(t, os.MkdirAll(slaves, 0o700))
	write(t, filepath.Join(slaves, filepath.Base(below)), "")
	next.adopt(context.Background())
	r.stageLocked(id, c)
	r.down(id, "a")
	if left, err := os.ReadDir(v.dir); err != nil || len(left) > 0 {
		t.Errorf("left open: %v, %v", left, err)
	}
	must(t, r.remove(id))
}

// With the kernel's own devices: a block volume is a device for its pod, and one that is called as an earlier driver
// has called it is the volume's for the next driver, whoever has it.
func TestLUKSBlockOfEarlier(t *testing.T) {
	needMapper(t)
	for _, name := range []string{"cryptsetup", "dmsetup"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s", name)
		}
	}
	r := newRig(t)
	q := request("n", typeLoop, block(), 4<<20)
	q.Parameters["encryption"] = "luks"
	id := r.create(q)
	r.stageLocked(id, block())
	must(t, r.publish(id, "a", block(), false))
	tool(t, "dmsetup", "rename", r.driver.backends.vault.name(id), earlier(id))
	r.restart()
	if _, err := os.Stat(filepath.Join("/dev/mapper", earlier(id))); err == nil {
		t.Error("the device has its earlier name")
	}
	must(t, os.WriteFile(r.target("a"), make([]byte, 4096), 0))
	_, err := r.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 8 << 20},
	})
	must(t, err)
	_, err = r.node.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: id, VolumePath: r.target("a"), Secrets: map[string]string{"passphrase": "right"},
	})
	must(t, err)
	r.stageLocked(id, block())
	r.down(id, "a")
	if _, err := os.Stat(r.driver.backends.vault.path(id)); err == nil {
		t.Error("the device is left open")
	}
	must(t, r.remove(id))
}

package volume

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/mount/mounttest"
)

// loopDevice is a block device with content at its beginning.
func loopDevice(t *testing.T, size int64, content string) string {
	t.Helper()
	needRoot(t)
	for _, tool := range []string{"losetup", "blkid", "mkfs.ext4"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	image := filepath.Join(t.TempDir(), "image")
	mounttest.Write(t, image, content)
	must(t, os.Truncate(image, size))
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", image).Output()
	if err != nil {
		t.Skipf("losetup: %v", err)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { must(t, exec.Command("losetup", "--detach", device).Run()) }) // the test's context has ended
	return device
}

func persistent(s corev1.PersistentVolumeSource, mode corev1.PersistentVolumeMode) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: s, VolumeMode: &mode}}
}

func claimed(pv *corev1.PersistentVolume) (*corev1.Pod, Content) {
	v := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}
	return podWith(v), Content{Persistent: map[string]*corev1.PersistentVolume{"v": pv}}
}

func TestLocalDevice(t *testing.T) {
	device := loopDevice(t, 16<<20, "")
	m := manager(t)
	pod, content := claimed(persistent(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: device}}, corev1.PersistentVolumeFilesystem))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(77))}
	paths, err := m.Setup(t.Context(), pod, content)
	must(t, err)
	if is, err := mount.Is(paths["v"]); err != nil || !is {
		t.Fatalf("%s is no mount: %v", paths["v"], err)
	}
	mounttest.Write(t, filepath.Join(paths["v"], "f"), "data")
	// The pod's end leaves the data, and the next pod finds it: nothing is formatted that has a file system.
	teardown(t, m)
	paths, err = m.Setup(t.Context(), pod, content)
	must(t, err)
	if mounttest.Read(t, filepath.Join(paths["v"], "f")) != "data" {
		t.Error("the data is gone")
	}
	var st unix.Stat_t
	must(t, unix.Stat(paths["v"], &st))
	if st.Gid != 77 {
		t.Errorf("group %d", st.Gid)
	}
	teardown(t, m)
}

// What is no file system may be somebody's data.
func TestDeviceWithDataIsLeft(t *testing.T) {
	for _, content := range []string{"somebody's data", strings.Repeat("\x00", 4<<20-1) + "x", strings.Repeat("\x00", 16<<20-1) + "x"} {
		device := loopDevice(t, 16<<20, content)
		m := manager(t)
		pod, c := claimed(persistent(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: device}}, corev1.PersistentVolumeFilesystem))
		if _, err := m.Setup(t.Context(), pod, c); err == nil || !strings.Contains(err.Error(), "data on it") {
			t.Errorf("got %v", err)
		}
		got := make([]byte, len(content))
		f, err := os.Open(device)
		must(t, err)
		if _, err := f.Read(got); err != nil || string(got) != content {
			t.Errorf("the device was written to: %v", err)
		}
		f.Close()
		teardown(t, m)
	}
}

func TestDeviceWithPartitions(t *testing.T) {
	// A master boot record with one partition.
	mbr := make([]byte, 512)
	mbr[446+4], mbr[446+8], mbr[446+12], mbr[510], mbr[511] = 0x83, 1, 8, 0x55, 0xaa
	device := loopDevice(t, 16<<20, string(mbr))
	m := manager(t)
	pod, content := claimed(persistent(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: device}}, corev1.PersistentVolumeFilesystem))
	if _, err := m.Setup(t.Context(), pod, content); err == nil || !strings.Contains(err.Error(), "partition table (dos)") {
		t.Errorf("got %v", err)
	}
	teardown(t, m)
}

func TestBlockVolume(t *testing.T) {
	device := loopDevice(t, 1<<20, "data")
	m := manager(t)
	local := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: device}}
	pod, content := claimed(persistent(local, corev1.PersistentVolumeBlock))
	c := &pod.Spec.Containers[0]
	if _, err := m.Setup(t.Context(), pod, content); err == nil || !strings.Contains(err.Error(), "must be in volumeDevices") {
		t.Errorf("a device as a mount: %v", err)
	}
	c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}
	paths, err := m.Setup(t.Context(), pod, content)
	if err != nil || paths["v"] != device {
		t.Errorf("got %v, %v", paths, err)
	}
	content.Persistent["v"] = persistent(local, corev1.PersistentVolumeFilesystem)
	if _, err := m.Setup(t.Context(), pod, content); err == nil || !strings.Contains(err.Error(), "must be in volumeMounts") {
		t.Errorf("a file system as a device: %v", err)
	}
	for path, why := range map[string]string{t.TempDir(): "a directory", "/dev/null": "a character device", "/nowhere": "no such file", "dev": "not absolute", string(m.root): "agent's own"} {
		content.Persistent["v"] = persistent(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}, corev1.PersistentVolumeBlock)
		if _, err := m.Setup(t.Context(), pod, content); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", path, err)
		}
	}
	teardown(t, m)
}

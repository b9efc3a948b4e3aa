package rootfs

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadFileOpensNoDevice: an image may have a device for its /etc/passwd, and some do things when they are merely
// opened: a watchdog starts to count, a tape is rewound, a modem dials.
func TestReadFileOpensNoDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes devices")
	}
	root := t.TempDir()
	for name, dev := range map[string]uint64{"nobody-has-it": unix.Mkdev(240, 250), "endless": unix.Mkdev(1, 5), "disk": unix.Mkdev(259, 9999)} {
		mode := uint32(unix.S_IFCHR)
		if name == "disk" {
			mode = unix.S_IFBLK
		}
		if err := unix.Mknod(filepath.Join(root, name), mode|0o600, int(dev)); err != nil {
			t.Skip(err)
		}
		// The kernel's answer to the opening of one that has no driver is ENXIO: who gets it has opened it.
		if b, err := ReadFile(root, name); err != nil || b != nil {
			t.Errorf("%s: got %q, %v", name, b, err)
		}
	}
	must(t, unix.Bind(socket(t), &unix.SockaddrUnix{Name: filepath.Join(root, "s")}))
	if b, err := ReadFile(root, "s"); err != nil || b != nil {
		t.Errorf("socket: got %q, %v", b, err)
	}
}

func socket(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestReadFileStaysInRoot(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	must(t, os.WriteFile(secret, []byte("outside"), 0o600))
	must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "etc/real"), []byte("inside"), 0o600))
	must(t, os.Symlink("/etc/real", filepath.Join(root, "etc/abs")))
	must(t, os.Symlink("../../../../../../../../"+secret, filepath.Join(root, "etc/up")))
	must(t, os.Symlink(secret, filepath.Join(root, "etc/out")))
	must(t, unix.Mkfifo(filepath.Join(root, "etc/fifo"), 0o600))
	must(t, os.Symlink("loop", filepath.Join(root, "etc/loop")))
	for path, want := range map[string]string{
		"/etc/real": "inside", "/etc/abs": "inside", "/etc/up": "", "/etc/out": "", "/etc/fifo": "", "/etc/none": "", "/etc": "", "/etc/loop": "",
		"/etc/real/x": "",
	} {
		b, err := ReadFile(root, path)
		if err != nil || string(b) != want {
			t.Errorf("%s: got %q, %v", path, b, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

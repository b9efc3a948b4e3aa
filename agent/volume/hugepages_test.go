package volume

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestHugePages makes an emptyDir of huge pages, and uses one, where the machine has any.
func TestHugePages(t *testing.T) {
	needRoot(t)
	m := manager(t)
	pod := podWith(emptyDir("named", "HugePages-2Mi", "2Mi"), emptyDir("asked", "HugePages", ""))
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}
	paths, err := m.Setup(t.Context(), pod, Content{})
	if err != nil {
		t.Skipf("no huge pages of 2 MiB: %v", err)
	}
	for name, path := range paths {
		var fs unix.Statfs_t
		must(t, unix.Statfs(path, &fs))
		if fs.Type != unix.HUGETLBFS_MAGIC || fs.Bsize != 2<<20 {
			t.Errorf("%s: type %x with blocks of %d bytes", name, fs.Type, fs.Bsize)
		}
	}
	f, err := os.OpenFile(filepath.Join(paths["named"], "f"), os.O_CREATE|os.O_RDWR, 0o600)
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(4<<20))
	page, err := unix.Mmap(int(f.Fd()), 0, 2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		teardown(t, m)
		t.Skipf("no huge page is free: %v", err)
	}
	page[0] = 1
	if more, err := unix.Mmap(int(f.Fd()), 2<<20, 2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("the limit of 2 MiB does not hold")
		_ = unix.Munmap(more)
	}
	must(t, unix.Munmap(page))
	f.Close()
	teardown(t, m)
}

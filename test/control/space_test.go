package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// disk is a small disk, and fills it until so many bytes are left; with 0 until nothing is.
func disk(t *testing.T, size int) (dir string, fill func(leave int64)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root mounts a disk to fill")
	}
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=700", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	filling := filepath.Join(dir, "filling")
	return dir, func(leave int64) {
		t.Helper()
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(filling, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		has, err := f.Stat() // what it has already is no room that it takes
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Fallocate(int(f.Fd()), 0, has.Size(), int64(st.Bavail)*st.Bsize-leave); err != nil {
			t.Fatal(err)
		}
	}
}

func empty(t *testing.T, dir string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, "filling")); err != nil {
		t.Fatal(err)
	}
}

// refusesWrites waits until writes are, for want of room.
func refusesWrites(t *testing.T, p *plane, who string) {
	t.Helper()
	i := 0
	until(t, "writes are refused", func() error {
		i++
		_, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(fmt.Sprintf("full-%s-%d", who, i)), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "database space exceeded") {
			return cmpErr(err)
		}
		return nil
	})
}

// readable has what was written read, and something deleted, while nothing is written.
func readable(t *testing.T, p *plane, w *writing) {
	t.Helper()
	w.check(t, p.client)
	until(t, "something is deleted", func() error {
		err := p.client.CoreV1().ConfigMaps(ns).Delete(t.Context(), "goes", metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil // by the request before, which had no answer
		}
		return err
	})
	if out := p.run(t, "etcd", "status"); !strings.Contains(out, "NOSPACE") {
		t.Errorf("etcd status does not tell of it:\n%s", out)
	}
}

// TestFullDisk fills the disk of a control plane while it is written to. It refuses writes and is read, is started
// again so after a kill, and takes writes again when room was made and the alarm disarmed. What it had acknowledged is
// there.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir, fill := disk(t, 512)
	p := start(t, dir)
	if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("goes"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w := &writing{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.wait.Go(func() { w.write(ctx, p.client, "a") })
	w.more(t)
	fill(40 << 20)
	refusesWrites(t, p, "first")
	cancel()
	w.wait.Wait()
	readable(t, p, w)
	if out, err := control(t, dir, "etcd", "disarm"); err == nil || !strings.Contains(out, "make room first") {
		t.Errorf("disarmed without room: %v\n%s", err, out)
	}
	// All of it is taken at once, and the process killed: there is room for the start.
	p.kill()
	fill(0)
	p = start(t, dir)
	refusesWrites(t, p, "again")
	w.check(t, p.client)

	empty(t, dir)
	refusesWrites(t, p, "still")
	p.run(t, "etcd", "disarm")
	until(t, "writes are taken again", func() error {
		_, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("room"), metav1.CreateOptions{})
		return err
	})
	w.check(t, p.client)
	if out := p.run(t, "etcd", "status"); strings.Contains(out, "NOSPACE") {
		t.Errorf("the alarm is still there:\n%s", out)
	}
	p.stop(t)
}

// TestFullDiskOfMember fills the disk of one of three members: none takes writes, all are read, and all goes on when
// there is room again.
func TestFullDiskOfMember(t *testing.T) {
	t.Parallel()
	small, fill := disk(t, 768)
	_, planes := three(t, [3]string{t.TempDir(), t.TempDir(), filepath.Join(small, "data")})
	if _, err := planes[0].client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("goes"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w := &writing{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, p := range planes[:2] {
		w.wait.Go(func() { w.write(ctx, p.client, strconv.Itoa(i)) })
	}
	w.more(t)
	fill(8 << 20)
	for i, p := range planes {
		refusesWrites(t, p, strconv.Itoa(i))
	}
	cancel()
	w.wait.Wait()
	readable(t, planes[0], w)
	w.check(t, planes[2].client)
	empty(t, small)
	planes[2].run(t, "etcd", "disarm")
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	for i, p := range planes {
		w.wait.Go(func() { w.write(ctx, p.client, "then-"+strconv.Itoa(i)) })
	}
	w.more(t)
	cancel()
	w.wait.Wait()
	for _, p := range planes {
		w.check(t, p.client)
	}
}

// TestSlowDisk makes the disk of one of three members slow, of the one that was elected. The others go on.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	dir, device := loopDisk(t)
	_, planes := three(t, [3]string{filepath.Join(dir, "data"), t.TempDir(), t.TempDir()})
	w := &writing{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, p := range planes[1:] {
		w.wait.Go(func() { w.write(ctx, p.client, strconv.Itoa(i)) })
	}
	w.more(t)
	fast := slow(t, device, planes[0].cmd.Process.Pid)
	until(t, "syncs of the member are slow", func() error {
		if !strings.Contains(planes[0].output.String(), "slow fdatasync") {
			return errors.New("none is told of yet")
		}
		return nil
	})
	for range 5 {
		w.more(t)
	}
	before := w.count()
	fast()
	w.more(t)
	cancel()
	w.wait.Wait()
	t.Logf("%d acknowledged writes while one disk was slow", before)
	for _, p := range planes {
		until(t, "every member has all", func() error { return w.missing(t.Context(), p.client) })
	}
}

// loopDisk is a disk of its own, and its device.
func loopDisk(t *testing.T) (dir, device string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root mounts a disk")
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 1<<30); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("mkfs.ext4", "-q", image)
	device = run("losetup", "--find", "--show", image)
	t.Cleanup(func() { run("losetup", "--detach", device) })
	dir = t.TempDir()
	if err := unix.Mount(device, dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir, device
}

// slow has a process write so seldom to a disk that each sync takes longer than an election, and returns what makes it
// fast again.
func slow(t *testing.T, device string, pid int) (fast func()) {
	t.Helper()
	const root = "/sys/fs/cgroup/blkio"
	if _, err := os.Stat(filepath.Join(root, "blkio.throttle.write_iops_device")); err != nil {
		t.Skip("needs the controller blkio of cgroup v1, which makes a disk slow for one process")
	}
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		t.Fatal(err)
	}
	group := filepath.Join(root, fmt.Sprintf("berth-control-test-%d", pid))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644) // it may have ended
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	limit := func(each int) {
		t.Helper()
		text := fmt.Sprintf("%d:%d %d", unix.Major(st.Rdev), unix.Minor(st.Rdev), each)
		if err := os.WriteFile(filepath.Join(group, "blkio.throttle.write_iops_device"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	limit(4)
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	return func() { limit(0) }
}

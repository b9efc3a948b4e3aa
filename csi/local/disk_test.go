package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/internal/mount"
)

// smallDisk is a rig whose data directory is a file system of its own: in memory, or an ext4 with the reserve for root
// that is used up, too.
func smallDisk(t *testing.T, kind string) (r *rig, disk string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts file systems")
	}
	dir := t.TempDir()
	disk = filepath.Join(dir, "data")
	must(t, os.Mkdir(disk, 0o700))
	t.Cleanup(func() { _ = mount.UnmountUnder(dir) })
	if kind == "tmpfs" {
		must(t, unix.Mount("small", disk, "tmpfs", 0, "size=8m"))
	} else {
		image := filepath.Join(dir, "disk")
		write(t, image, "")
		must(t, os.Truncate(image, 16<<20))
		for _, c := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, disk}} {
			if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", c, err, out)
			}
		}
	}
	r = &rig{t: t, dir: dir}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r, disk
}

// fill takes all the room of a file system, and gives it back.
func fill(t *testing.T, dir string) (give func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	must(t, err)
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	must(t, f.Close())
	return func() { must(t, os.Remove(path)) }
}

// On a disk that is full nothing new is made, what there is stays, and all that takes no room is done: pods start with
// the volumes they have as far as that is so, they end, and volumes are deleted, which is how a disk gets room again.
func TestFullDisk(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			r, disk := smallDisk(t, kind)
			c := mounted("")
			used, idle := r.create(request("used", typeDirectory, c, 1<<20)), r.create(request("idle", typeDirectory, c, 1<<20))
			image := r.create(request("image", typeLoop, block(), 1<<20))
			r.up(used, "a", c)
			must(t, r.publish(used, "b", c, false))
			must(t, r.stage(image, block()))
			write(t, filepath.Join(r.target("a"), "f"), "data")
			give := fill(t, disk)
			_, err := r.controller.CreateVolume(t.Context(), request("more", typeDirectory, c, 1<<20))
			if code := status.Code(err); code != codes.ResourceExhausted {
				t.Errorf("a volume is made on a full disk: %v", err)
			}
			must(t, r.unpublish(used, "b"))
			must(t, r.unpublish(used, "b"))
			must(t, r.remove(idle))
			must(t, r.remove(idle))
			// What could not be written is found out by the next driver.
			r.restart()
			r.wantUnused(idle, "idle")
			if u, err := r.driver.records.use(used); err != nil || len(u.Targets) != 1 {
				t.Errorf("it is used as %+v, %v", u, err)
			}
			wantText(t, filepath.Join(r.target("a"), "f"), "data")
			r.down(used, "a")
			must(t, r.unstage(image))
			must(t, r.remove(image))
			give()
			r.up(used, "a", c)
			wantText(t, filepath.Join(r.target("a"), "f"), "data")
			r.down(used, "a")
			must(t, r.remove(used))
			for _, d := range []string{"volumes", "images", "records/volumes", "quarantine"} {
				if left, err := os.ReadDir(filepath.Join(disk, d)); err != nil || len(left) > 0 {
					t.Errorf("%s has %v, %v", d, left, err)
				}
			}
		})
	}
}

// wantUnused wants nothing to be there of a volume.
func (r *rig) wantUnused(id, name string) {
	r.t.Helper()
	if r.driver.records.volumes.Has(id) {
		r.t.Errorf("volume %s is there", name)
	}
	if _, err := os.Lstat(filepath.Join(r.dir, "data", "volumes", id)); !os.IsNotExist(err) {
		r.t.Errorf("the data of %s is there: %v", name, err)
	}
}

// On a data directory that nobody may write to any more, as that of a disk with errors, a driver says what is the
// matter, lets volumes go, and loses none. Where there is nothing yet it does not start.
func TestReadOnlyDisk(t *testing.T) {
	r, disk := smallDisk(t, "ext4")
	c := mounted("")
	id := r.create(request("n", typeDirectory, c, 1<<20))
	r.up(id, "a", c)
	write(t, filepath.Join(r.target("a"), "f"), "data")
	remount := func(flags uintptr) { t.Helper(); must(t, unix.Mount("", disk, "", unix.MS_REMOUNT|flags, "")) }
	remount(unix.MS_RDONLY)
	_, err := r.controller.CreateVolume(t.Context(), request("more", typeDirectory, c, 1<<20))
	wantCode(t, err, codes.Internal, "read-only file system")
	must(t, r.unpublish(id, "a"))
	r.restart()
	must(t, r.unstage(id))
	wantCode(t, r.remove(id), codes.Internal, "read-only file system")
	wantCode(t, r.stage(id, c), codes.Internal, "read-only file system")
	none := r.config()
	none.DataDir = filepath.Join(disk, "none")
	if _, err := Open(t.Context(), none); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), none.DataDir) {
		t.Errorf("it says %v", err)
	}
	remount(0)
	r.restart()
	r.up(id, "a", c)
	wantText(t, filepath.Join(r.target("a"), "f"), "data")
	r.down(id, "a")
	must(t, r.remove(id))
}

// Of two processes on one data directory the second is told that there is a first, and does nothing there; when the
// first is killed, the next one has it.
func TestTwoProcesses(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.stop = func() {}
	first := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHolder$")
	first.Env = append(os.Environ(), holderEnv+"="+r.dir)
	out, err := first.StdoutPipe()
	must(t, err)
	_, err = first.StdinPipe()
	must(t, err)
	must(t, first.Start())
	defer func() { _ = first.Process.Kill(); _ = first.Wait() }()
	if _, err := io.ReadFull(out, make([]byte, len(holderSays))); err != nil {
		t.Fatal(err)
	}
	// A name that would be removed by who cleans up.
	part := filepath.Join(r.dir, "data", "records", "volumes", idOf(volumeKind, "n")+".json.new")
	write(t, part, "half")
	for _, dir := range []string{"data", "link"} {
		must(t, os.RemoveAll(filepath.Join(r.dir, "link")))
		must(t, os.Symlink("data", filepath.Join(r.dir, "link")))
		c := r.config()
		c.DataDir = filepath.Join(r.dir, dir)
		if _, err := Open(context.Background(), c); !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), filepath.Join(r.dir, "data")) {
			t.Errorf("the second says %v", err)
		}
	}
	wantText(t, part, "half")
	must(t, first.Process.Kill())
	_ = first.Wait()
	r.start()
}

const (
	holderEnv  = "CSI_LOCAL_HOLDER"
	holderSays = "has it\n"
)

// TestHolder is the first process of TestTwoProcesses.
func TestHolder(t *testing.T) {
	dir := os.Getenv(holderEnv)
	if dir == "" {
		t.Skip("TestTwoProcesses runs it")
	}
	r := &rig{t: t, dir: dir}
	d, err := Open(context.Background(), r.config())
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	fmt.Print(holderSays)
	_, _ = io.Copy(io.Discard, os.Stdin)
	// A driver that nothing refers to any more is collected, and its lock's file closed with it.
	must(t, d.Close())
}

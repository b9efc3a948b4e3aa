package local

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// BenchmarkDirectory is what a pod waits for whose volume is a directory: stage and publish.
func BenchmarkDirectory(b *testing.B) {
	r, c := newRig(b), mounted("")
	id := r.create(request("n", typeDirectory, c, 1<<20))
	for b.Loop() {
		r.up(id, "a", c)
		b.StopTimer()
		r.down(id, "a")
		b.StartTimer()
	}
	must(b, r.remove(id))
}

// BenchmarkLoop is the first stage and publish of a volume with a file system of its own, to be held against
// BenchmarkByHand.
func BenchmarkLoop(b *testing.B) {
	r, c := newRig(b), mounted("ext4")
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		id := r.create(request(fmt.Sprint(i), typeLoop, c, 1<<30))
		b.StartTimer()
		r.up(id, "a", c)
		b.StopTimer()
		r.down(id, "a")
		must(b, r.remove(id))
		b.StartTimer()
	}
}

// BenchmarkByHand is mkfs and mount of the same.
func BenchmarkByHand(b *testing.B) {
	newRig(b)
	dir := b.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "at")
	must(b, os.Mkdir(at, 0o755))
	run := func(args ...string) {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			b.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	for b.Loop() {
		b.StopTimer()
		write(b, image, "")
		must(b, os.Truncate(image, 1<<30))
		b.StartTimer()
		run("mkfs.ext4", "-q", "-F", image)
		run("mount", "-o", "loop", image, at)
		b.StopTimer()
		run("umount", at)
		must(b, os.Remove(image))
		b.StartTimer()
	}
}

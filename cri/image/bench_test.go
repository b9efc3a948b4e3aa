package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// BenchmarkPull pulls five layers from a registry on loopback, and unpacks the same with tar -xzf, all layers at once,
// in the same run: the ratio is what counts. The layers are made of the Go installation.
func BenchmarkPull(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: owners of files")
	}
	layers := goLayers(b)
	img := &imagetest.Spec{Name: "bench:v1"}
	var size int64
	for _, l := range layers {
		img.Tars = append(img.Tars, l)
		size += int64(len(l))
	}
	host := benchRegistry(b)
	built := imagetest.Build(*img)
	name, err := imagetest.Push(host, built)
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	for i, l := range built.Layers {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), l.Data, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	built, img = nil, nil
	runtime.GC()
	b.SetBytes(size)
	var ours, theirs, oursCPU, theirsCPU time.Duration
	for b.Loop() {
		b.StopTimer()
		cpu := cpuTime(unix.RUSAGE_CHILDREN)
		theirs += untar(b, dir)
		theirsCPU += cpuTime(unix.RUSAGE_CHILDREN) - cpu
		w, err := openWorld(b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		start := time.Now()
		cpu = cpuTime(unix.RUSAGE_SELF)
		mustPull(b, w, name)
		ours += time.Since(start)
		oursCPU += cpuTime(unix.RUSAGE_SELF) - cpu
		b.StopTimer()
		if err := w.close(); err != nil {
			b.Fatal(err)
		}
		if err := os.RemoveAll(w.dir); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(theirs.Milliseconds())/float64(b.N), "tar-ms/op")
	b.ReportMetric(float64(ours.Milliseconds())/float64(b.N), "pull-ms/op")
	b.ReportMetric(float64(ours)/float64(theirs), "of-tar")
	// On a busy machine the processor time is the fairer measure: tar and gzip are ten processes, this is one.
	b.ReportMetric(float64(oursCPU)/float64(theirsCPU), "cpu-of-tar")
}

func cpuTime(who int) time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(who, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func untar(b *testing.B, dir string) time.Duration {
	to := b.TempDir()
	start := time.Now()
	var wait sync.WaitGroup
	for i := range 5 {
		wait.Go(func() {
			d := filepath.Join(to, fmt.Sprint(i))
			if err := os.Mkdir(d, 0o755); err != nil {
				b.Error(err)
			}
			if out, err := exec.Command("tar", "-xzf", filepath.Join(dir, fmt.Sprint(i)), "-C",
				d).CombinedOutput(); err != nil {
				b.Errorf("%v: %s", err, out)
			}
		})
	}
	wait.Wait()
	took := time.Since(start)
	if err := os.RemoveAll(to); err != nil {
		b.Error(err)
	}
	return took
}

// goLayers are five archives of about the same size.
func goLayers(b *testing.B) [][]byte {
	root := strings.TrimSpace(goEnv(b, "GOROOT"))
	var out [5]bytes.Buffer
	var ws [5]*tar.Writer
	for i := range ws {
		ws[i] = tar.NewWriter(&out[i])
	}
	last := 0
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Name, _ = filepath.Rel(root, p)
		if d.IsDir() {
			h.Name += "/"
			for i := range out {
				if out[i].Len() < out[last].Len() {
					last = i // a whole directory to the smallest
				}
			}
		}
		if err := ws[last].WriteHeader(h); err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		if err == nil {
			_, err = ws[last].Write(data)
		}
		return err
	})
	var all [][]byte
	for i := range ws {
		if cerr := ws[i].Close(); err != nil || cerr != nil {
			b.Fatal(err, cerr)
		}
		all = append(all, out[i].Bytes())
	}
	return all
}

func goEnv(b *testing.B, name string) string {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		b.Skipf("needs the Go installation: %v", err)
	}
	return string(out)
}

// benchRegistry is Debian's docker-registry where it is installed, because the one in the test's process would be
// measured too; else that one.
func benchRegistry(t testing.TB) string {
	if host, ok := imagetest.StartDocker(t); ok {
		return host
	}
	return imagetest.NewRegistry(t).Host
}

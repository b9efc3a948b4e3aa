package layer

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// BenchmarkUnpack compares with tar -xzf on the layers in BERTH_BENCH_LAYERS (a directory of *.tar.gz), all at once.
func BenchmarkUnpack(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: owners of files")
	}
	dir := os.Getenv("BERTH_BENCH_LAYERS")
	files, _ := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
	if len(files) == 0 {
		b.Skip("needs layers in BERTH_BENCH_LAYERS")
	}
	all := func(f func(file, to string) error) time.Duration {
		to := b.TempDir()
		start := time.Now()
		var wg sync.WaitGroup
		for i, file := range files {
			wg.Go(func() {
				d := filepath.Join(to, fmt.Sprint(i))
				if err := os.Mkdir(d, 0o755); err != nil {
					b.Error(err)
				}
				if err := f(file, d); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		d := time.Since(start)
		if err := os.RemoveAll(to); err != nil {
			b.Error(err)
		}
		return d
	}
	var ours, theirs time.Duration
	for b.Loop() {
		theirs += all(func(file, to string) error {
			out, err := exec.Command("tar", "-xzf", file, "-C", to).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
			}
			return nil
		})
		ours += all(func(file, to string) error {
			f, err := os.Open(file)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = Unpack(b.Context(), f, to, Options{Budget: NewBudget(1<<40, 1<<30)})
			return err
		})
	}
	b.ReportMetric(float64(theirs.Milliseconds())/float64(b.N), "tar-ms")
	b.ReportMetric(float64(ours.Milliseconds())/float64(b.N), "ours-ms")
	b.ReportMetric(float64(ours)/float64(theirs), "ratio")
	_ = bytes.MinRead
}

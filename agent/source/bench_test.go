package source

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkEventToUpdate measures from before the write of a manifest to its update.
func BenchmarkEventToUpdate(b *testing.B) {
	h := start(b, b.TempDir(), nil)
	defer h.stop()
	for i := 0; b.Loop(); i++ {
		h.write("a.yaml", podYAML("web", fmt.Sprintf("nginx:%d", i)))
		h.waitImage("web", fmt.Sprintf("nginx:%d", i))
	}
}

// BenchmarkHundred measures a hundred manifests written at once.
func BenchmarkHundred(b *testing.B) {
	h := start(b, b.TempDir(), nil)
	defer h.stop()
	var first time.Duration
	for i := 0; b.Loop(); i++ {
		at := time.Now()
		for n := range 100 {
			h.write(fmt.Sprintf("p%d.yaml", n), podYAML(fmt.Sprintf("p%d", n), fmt.Sprintf("nginx:%d", i)))
		}
		h.waitImage("p0", fmt.Sprintf("nginx:%d", i))
		first += time.Since(at)
		for n := range 100 {
			h.waitImage(fmt.Sprintf("p%d", n), fmt.Sprintf("nginx:%d", i))
		}
	}
	b.ReportMetric(float64(first.Microseconds())/float64(b.N), "us/first")
}

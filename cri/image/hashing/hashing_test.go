package hashing

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

func data(seed uint64, n int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

func needVector(t testing.TB) *Group {
	t.Helper()
	var g Group
	g.New()
	if !g.vector {
		t.Skip("needs AVX-512 and no SHA instructions: elsewhere the library's hash is used as it is")
	}
	return &g
}

// TestSum: many streams of many lengths in pieces of many sizes have the sums the library says.
func TestSum(t *testing.T) {
	g := needVector(t)
	var wait sync.WaitGroup
	for i := range 40 {
		wait.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			all := data(uint64(i), rnd.IntN(600_000))
			h := g.New()
			for rest := all; len(rest) > 0; {
				n := min(len(rest), 1+rnd.IntN([]int{10, 100, 5000, 300_000}[rnd.IntN(4)]))
				_, _ = h.Write(rest[:n])
				rest = rest[n:]
				if rnd.IntN(4) == 0 {
					h.Sum(nil) // changes nothing
				}
			}
			want := sha256.Sum256(all)
			if got := h.Sum(nil); !bytes.Equal(got, want[:]) {
				t.Errorf("%d bytes: %x, want %x", len(all), got, want)
			}
			h.Reset()
			_, _ = h.Write(all)
			if got := h.Sum(nil); !bytes.Equal(got, want[:]) {
				t.Errorf("%d bytes after a reset: %x, want %x", len(all), got, want)
			}
		})
	}
	wait.Wait()
	if g.leading || len(g.active) > 0 || len(g.waiting) > 0 {
		t.Errorf("left: %v, %d, %d", g.leading, len(g.active), len(g.waiting))
	}
}

func BenchmarkWrite(b *testing.B) {
	g := needVector(b)
	for _, n := range []int{1, 2, 3, 5, 8, 10} {
		for _, who := range []string{"together", "alone"} {
			b.Run(fmt.Sprint(n, " ", who), func(b *testing.B) {
				all := data(1, 256<<10)
				b.SetBytes(int64(n * len(all)))
				var wait sync.WaitGroup
				for range n {
					wait.Go(func() {
						h := sha256.New()
						if who == "together" {
							h = g.New()
						}
						for range b.N {
							_, _ = h.Write(all)
						}
					})
				}
				wait.Wait()
			})
		}
	}
}

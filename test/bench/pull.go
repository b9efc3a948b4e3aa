package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const pullRuns = 5

// pull times pull and unpack of an image of five gzip layers from a registry on loopback, and as the floor `tar -xzf`
// of the same layers, all at once.
func (b *bench) pull(ctx context.Context, p peer) error {
	layers, err := layers(b.dir)
	if err != nil {
		return err
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/big:1"
	if err := push(ref, layers); err != nil {
		return err
	}
	var floor, took []time.Duration
	for range pullRuns {
		d, err := untar(b.dir, layers)
		if err != nil {
			return err
		}
		floor = append(floor, d)
		begin := time.Now()
		if err := p.Pull(ctx, ref); err != nil {
			return err
		}
		took = append(took, time.Since(begin))
		if err := p.Forget(ctx, ref); err != nil {
			return err
		}
		time.Sleep(time.Second) // what was removed is deleted in the background
	}
	b.report.record(p, "floor: tar -xzf of 5 layers at once", "ms", median(floor))
	b.report.record(p, "pull and unpack of the same 5 layers", "ms", median(took))
	return nil
}

func push(ref string, layers []string) error {
	r, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		return err
	}
	var img v1.Image = empty.Image
	for _, path := range layers {
		l, err := tarball.LayerFromFile(path)
		if err != nil {
			return err
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			return err
		}
	}
	return remote.Write(r, img)
}

func untar(dir string, layers []string) (time.Duration, error) {
	tmp, err := os.MkdirTemp(dir, "untar-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tmp)
	begin := time.Now()
	var cmds []*exec.Cmd
	for i, l := range layers {
		d := fmt.Sprintf("%s/%d", tmp, i)
		if err := os.Mkdir(d, 0o755); err != nil {
			return 0, err
		}
		c := exec.Command("tar", "-C", d, "-xzf", l)
		cmds = append(cmds, c)
		if err := c.Start(); err != nil {
			return 0, err
		}
	}
	var errs []error
	for _, c := range cmds {
		errs = append(errs, c.Wait())
	}
	return time.Since(begin), errors.Join(errs...)
}

// layers makes five layers that compress about as well as a distribution's files: 342 MB in some thousand files.
func layers(dir string) ([]string, error) {
	paths, _ := filepath.Glob(dir + "/layer-*.tar.gz")
	if len(paths) == 5 {
		return paths, nil
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	words := make([][]byte, 4096)
	for i := range words {
		w := make([]byte, 3+rnd.IntN(12))
		for j := range w {
			w[j] = byte(rnd.IntN(256))
		}
		words[i] = w
	}
	for i := range 5 {
		path := fmt.Sprintf("%s/layer-%d.tar.gz", dir, i)
		if err := writeLayer(path, rnd, words, []int{150, 80, 60, 40, 12}[i]<<20, i); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func writeLayer(path string, rnd *rand.Rand, words [][]byte, size, n int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	var body bytes.Buffer
	for i := 0; size > 0; i++ {
		body.Reset()
		length := min(size, 1<<(10+rnd.IntN(12)))
		for body.Len() < length {
			body.Write(words[rnd.IntN(len(words))])
		}
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: fmt.Sprintf("usr/share/l%d/d%d/f%d", n, i%37, i), Mode: 0o644,
			Size: int64(body.Len()),
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(body.Bytes()); err != nil {
			return err
		}
		size -= body.Len()
	}
	return errors.Join(w.Close(), z.Close(), f.Close())
}

package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/berth-node/berth/cri/image/imagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// big is an image whose layer is long enough to be cut a few times.
var big = imagetest.Build(imagetest.Spec{Name: "dir/big:v1", Packing: imagetest.Plain, Layers: [][]imagetest.File{
	{{Name: "f", Body: strings.Repeat("0123456789abcdef", 40_000)}},
}})

func pushed(t testing.TB) *imagetest.Registry {
	t.Helper()
	r := imagetest.NewRegistry(t)
	if _, err := imagetest.Push(r.Host, big); err != nil {
		t.Fatal(err)
	}
	return r
}

// open returns the repository of big on host, with attempts that follow each other fast.
func open(t testing.TB, host string, auth *Auth, change ...func(*Config)) *Repository {
	t.Helper()
	c := Config{Backoff: time.Millisecond, StallTimeout: time.Minute}
	for _, f := range change {
		f(&c)
	}
	name, err := reference.ParseNormalizedNamed(host + "/dir/big")
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(c).Repository(t.Context(), name, auth)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func layer() ocispec.Descriptor { return big.Layers[0].Desc }

func readBlob(t testing.TB, r *Repository, d ocispec.Descriptor, offset int64) ([]byte, error) {
	t.Helper()
	b := r.Blob(t.Context(), d, offset)
	defer b.Close()
	return io.ReadAll(b)
}

func wantBlob(t testing.TB, r *Repository) {
	t.Helper()
	got, err := readBlob(t, r, layer(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, big.Layers[0].Data) {
		t.Error("content differs")
	}
}

func isBlob(r *http.Request) bool { return strings.Contains(r.URL.Path, "/blobs/") }

func TestRead(t *testing.T) {
	r := open(t, pushed(t).Host, nil)
	m, err := r.Tag(t.Context(), "v1")
	if err != nil {
		t.Fatal(err)
	}
	if m.Digest != big.Digest || m.MediaType != ocispec.MediaTypeImageManifest {
		t.Errorf("manifest is %s %s", m.MediaType, m.Digest)
	}
	if d, err := r.Head(t.Context(), "v1"); err != nil || d != big.Digest {
		t.Errorf("head says %s, %v", d, err)
	}
	if m, err := r.Digest(t.Context(), big.Digest); err != nil || !bytes.Equal(m.Body, big.Manifest) {
		t.Errorf("manifest by digest: %v", err)
	}
	wantBlob(t, r)
	for _, offset := range []int64{1, 1000, layer().Size - 1, layer().Size} {
		if got, err := readBlob(t, r, layer(), offset); err != nil || !bytes.Equal(got, big.Layers[0].Data[offset:]) {
			t.Errorf("from %d: %d bytes, %v", offset, len(got), err)
		}
	}
	if _, err := r.Tag(t.Context(), "absent"); !errors.Is(err, ErrNotFound) {
		t.Errorf("error is %v", err)
	}
}

// cutter lets only so many bytes of each blob through before it breaks the connection.
func cutter(limit int) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !isBlob(r) {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(&cutWriter{ResponseWriter: w, left: limit}, r)
	}
}

type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(p []byte) (int, error) {
	n, _ := c.ResponseWriter.Write(p[:min(len(p), c.left)])
	if c.left -= n; c.left == 0 {
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, nil
}

func TestResume(t *testing.T) {
	reg := pushed(t)
	reg.Fault(cutter(200_000))
	r := open(t, reg.Host, nil)
	wantBlob(t, r)
	var ranges []string
	for _, q := range reg.Requests() {
		ranges = append(ranges, q.Header.Get("Range"))
	}
	if got := fmt.Sprint(ranges); got != "[ bytes=200000-641535 bytes=400000-641535 bytes=600000-641535]" {
		t.Errorf("ranges asked for: %s", got)
	}
	// One byte at a time is no progress.
	reg.Fault(cutter(1))
	if _, err := readBlob(t, r, layer(), 0); err == nil || !strings.Contains(err.Error(), "broken off 5 times") {
		t.Errorf("error is %v", err)
	}
}

// TestNoRanges: a server that does not know ranges sends everything again.
func TestNoRanges(t *testing.T) {
	reg := pushed(t)
	first := true
	reg.Fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if isBlob(r) && first {
			first = false
			cutter(100_000)(w, r, next)
			return
		}
		r.Header.Del("Range")
		next.ServeHTTP(w, r)
	})
	wantBlob(t, open(t, reg.Host, nil))

	first = true
	reg.Fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch {
		case r.Header.Get("Range") != "":
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		case isBlob(r) && first:
			first = false
			cutter(100_000)(w, r, next)
		default:
			next.ServeHTTP(w, r)
		}
	})
	wantBlob(t, open(t, reg.Host, nil))
}

func TestLies(t *testing.T) {
	data := big.Layers[0].Data
	whole := func(w http.ResponseWriter, length int, body []byte) {
		if length >= 0 {
			w.Header().Set("Content-Length", strconv.Itoa(length))
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // without a length this makes it chunked
		_, _ = w.Write(body)
	}
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		want   string
	}{
		"longer, said": {func(w http.ResponseWriter, _ *http.Request) {
			whole(w, len(data)+1, append(slices.Clip(data), 'x'))
		}, "its descriptor says"},
		"shorter, said": {
			func(w http.ResponseWriter, _ *http.Request) { whole(w, 10, data[:10]) },
			"content has 10 bytes, its descriptor says",
		},
		"longer, not said": {
			func(w http.ResponseWriter, _ *http.Request) { whole(w, -1, append(slices.Clip(data), 'x')) },
			"longer than",
		},
		"shorter, not said": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") == "" {
				whole(w, -1, data[:70_000])
				return
			}
			w.Header().Set("Content-Range", "bytes 70000-0/0")
			w.WriteHeader(http.StatusPartialContent)
			_ = http.NewResponseController(w).Flush()
		}, "ended after 70000 of"},
		"other range": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") == "" {
				whole(w, -1, data[:70_000])
				return
			}
			w.Header().Set("Content-Range", "bytes 5-10/11")
			w.WriteHeader(http.StatusPartialContent)
		}, `content from byte 70000 was asked for, "bytes 5-10/11" came`},
	} {
		t.Run(name, func(t *testing.T) {
			reg := pushed(t)
			reg.Fault(func(w http.ResponseWriter, r *http.Request, _ http.Handler) { c.answer(w, r) })
			if _, err := readBlob(t, open(t, reg.Host, nil), layer(), 0); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
		})
	}
	t.Run("other manifest", func(t *testing.T) {
		reg := pushed(t)
		reg.Fault(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { whole(w, -1, []byte("{}")) })
		r := open(t, reg.Host, nil)
		if _, err := r.Digest(t.Context(), big.Digest); err == nil ||
			!strings.Contains(err.Error(), "sent content of digest") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("endless manifest", func(t *testing.T) {
		reg := pushed(t)
		reg.Fault(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			for {
				if _, err := w.Write(data); err != nil {
					return
				}
			}
		})
		if _, err := open(t, reg.Host, nil).Tag(t.Context(), "v1"); err == nil ||
			!strings.Contains(err.Error(), "manifest of more than") {
			t.Errorf("error is %v", err)
		}
	})
}

func TestStall(t *testing.T) {
	reg := pushed(t)
	quick := func(c *Config) { c.StallTimeout = 50 * time.Millisecond }
	patient := func(c *Config) { c.StallTimeout = time.Second }
	stalled := atomic.Int32{}
	reg.Fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if isBlob(r) && stalled.Add(1) <= 2 {
			_, _ = w.Write(big.Layers[0].Data[:1000])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		next.ServeHTTP(w, r)
	})
	// It sent 1000 bytes of no known length, which is taken up where it stopped.
	wantBlob(t, open(t, reg.Host, nil, patient))

	reg.Fault(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() })
	if _, err := open(t, reg.Host, nil, quick).Tag(t.Context(), "v1"); !errors.Is(err, ErrStalled) {
		t.Errorf("error is %v", err)
	}
	// Who reads slowly is not the registry's fault.
	reg.Fault(nil)
	b := open(t, reg.Host, nil, patient).Blob(t.Context(), layer(), 0)
	defer b.Close()
	if _, err := b.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond)
	if rest, err := io.ReadAll(b); err != nil || int64(len(rest)) != layer().Size-10 {
		t.Errorf("%d bytes, %v", len(rest), err)
	}
}

func TestTryAgain(t *testing.T) {
	for name, c := range map[string]struct {
		status, times int
		header        string
		want          string
	}{
		"busy":              {429, 2, "", ""},
		"busy for a second": {429, 1, "1", ""},
		"busy for an hour":  {429, 100, "3600", "to be tried again after 1h"},
		"broken":            {500, 2, "", ""},
		"gateway":           {502, 4, "", ""},
		"broken for good":   {503, 100, "", "503 Service Unavailable: unavailable: come back"},
		"forbidden":         {403, 100, "", "403 Forbidden"},
		"teapot":            {418, 100, "", "418"},
	} {
		t.Run(name, func(t *testing.T) {
			reg := pushed(t)
			n := 0
			var first, last time.Time
			reg.Fault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				last = time.Now()
				if n == 0 {
					first = last
				}
				if n++; n > c.times {
					next.ServeHTTP(w, r)
					return
				}
				if c.header != "" {
					w.Header().Set("Retry-After", c.header)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, `{"errors":[{"code":"UNAVAILABLE","message":"come back"}]}`)
			})
			_, err := open(t, reg.Host, nil).Tag(t.Context(), "v1")
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
			if c.header == "1" && last.Sub(first) < time.Second {
				t.Errorf("came back after %s", last.Sub(first))
			}
			if c.status == 418 && n != 1 || n > 5 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestCancelled(t *testing.T) {
	reg := pushed(t)
	reg.Fault(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() })
	why := errors.New("no longer wanted")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	if _, err := open(t, reg.Host, nil).Tag(ctx, "v1"); !errors.Is(err, why) {
		t.Errorf("error is %v", err)
	}
}

func TestUnreachable(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	if _, err := open(t, host, nil).Tag(t.Context(), "v1"); err == nil ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("error is %v", err)
	}
}

func TestLoopback(t *testing.T) {
	for domain, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "127.0.0.1:80": true, "127.8.9.1:5000": true, "[::1]:5000": true,
		"[::1]":                 true,
		"localhost.example.org": false, "docker.io": false, "10.0.0.1:5000": false, "0x7f.1": false, "128.0.0.1": false,
	} {
		if isLoopback(domain) != want {
			t.Errorf("%s: want %v", domain, want)
		}
	}
}

package inflate

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	kgzip "github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"
)

func pack(t testing.TB, level int, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	w.Name, w.Comment, w.Extra = "name", "comment", make([]byte, 100)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unpack(r io.Reader) ([]byte, error) {
	z, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	return io.ReadAll(z)
}

func samples() map[string][]byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 300_000)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	self, _ := os.ReadFile(os.Args[0])
	var mixed []byte
	for len(mixed) < 3_000_000 {
		switch n := 1 + rnd.IntN(2000); rnd.IntN(4) {
		case 0:
			mixed = append(mixed, noise[:n]...)
		case 1:
			mixed = append(mixed, bytes.Repeat([]byte{byte(n)}, n)...)
		case 2:
			mixed = append(mixed, bytes.Repeat([]byte("abcdefg")[:1+n%7], n)...)
		default:
			if at := rnd.IntN(len(mixed) + 1); at+n < len(mixed) {
				mixed = append(mixed, mixed[at:at+n]...)
			}
		}
	}
	return map[string][]byte{
		"empty": nil, "one": {1}, "zeros": make([]byte, 1_000_000), "noise": noise,
		"text":    []byte(strings.Repeat("all work and no play ", 20_000)),
		"program": self[:min(len(self), 4<<20)], "mixed": mixed,
	}
}

func TestUnpack(t *testing.T) {
	for name, data := range samples() {
		for _, level := range []int{
			gzip.HuffmanOnly, gzip.NoCompression, gzip.BestSpeed, gzip.DefaultCompression,
			gzip.BestCompression,
		} {
			packed := pack(t, level, data)
			for kind, r := range map[string]io.Reader{
				"": bytes.NewReader(packed), "half": iotest.HalfReader(bytes.NewReader(packed)),
				"data and EOF": iotest.DataErrReader(bytes.NewReader(packed)),
			} {
				got, err := unpack(r)
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("%s, level %d, %s: %d of %d bytes, %v", name, level, kind, len(got), len(data), err)
				}
			}
		}
	}
	text := samples()["text"]
	packed := pack(t, 6, text)
	if got, err := unpack(iotest.OneByteReader(bytes.NewReader(packed))); err != nil || !bytes.Equal(got, text) {
		t.Errorf("byte by byte: %d bytes, %v", len(got), err)
	}
	twice := append(slices.Clip(packed), packed...)
	if got, err := unpack(bytes.NewReader(twice)); err != nil || len(got) != 2*len(text) {
		t.Errorf("two members: %d bytes, %v", len(got), err)
	}
}

// TestCut: whatever is missing or changed, it is noticed.
func TestCut(t *testing.T) {
	text := samples()["text"][:5000]
	packed := pack(t, 6, text)
	for i := range packed {
		if got, err := unpack(bytes.NewReader(packed[:i])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: %d bytes, %v", i, len(got), err)
		}
		changed := bytes.Clone(packed)
		changed[i] ^= 0x10
		if got, err := unpack(bytes.NewReader(changed)); err == nil && !bytes.Equal(got, text) {
			t.Errorf("changed at %d: not noticed", i)
		}
	}
	broken := errors.New("broken")
	if _, err := unpack(io.MultiReader(bytes.NewReader(packed[:100]), iotest.ErrReader(broken))); !errors.Is(err,
		broken) {
		t.Errorf("error is %v", err)
	}
	for _, tail := range []string{"x", strings.Repeat("x", 50)} {
		if _, err := unpack(io.MultiReader(bytes.NewReader(packed), strings.NewReader(tail))); err == nil {
			t.Errorf("tail %q: not noticed", tail)
		}
	}
	if _, err := unpack(bytes.NewReader(append(make([]byte, 20), packed...))); !errors.Is(err, ErrHeader) {
		t.Errorf("error is %v", err)
	}
}

// member makes a gzip stream of raw deflate data that may be bad; its trailer is that of what compress/flate makes of
// them.
func member(raw []byte) []byte {
	head, _ := hex.DecodeString("1f8b0800000000000003")
	return append(append(head, raw...), make([]byte, 40)...)
}

// FuzzRaw holds the decoder against the standard library's, on raw deflate data: both find the same bytes, up to an
// error that both find.
func FuzzRaw(f *testing.F) {
	for _, data := range samples() {
		for _, level := range []int{flate.HuffmanOnly, 0, 1, 6, 9} {
			var b bytes.Buffer
			w, _ := flate.NewWriter(&b, level)
			_, _ = w.Write(data[:min(len(data), 5000)])
			_ = w.Close()
			f.Add(b.Bytes())
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		const most = 1 << 20
		want, wantErr := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(raw)), most))
		z, err := NewReader(bytes.NewReader(member(raw)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(io.LimitReader(z, most))
		// The trailer is wrong and more follows the data than there was, so only what the data themselves say can
		// agree.
		n := min(len(got), len(want))
		if !bytes.Equal(got[:n], want[:n]) {
			t.Fatalf("other bytes: %x, want %x", got[:n], want[:n])
		}
		if wantErr == nil && (len(got) != len(want) || err != nil && !errors.Is(err, ErrChecksum) &&
			!errors.Is(err, ErrHeader) && !errors.Is(err, io.ErrUnexpectedEOF)) {
			t.Fatalf("%d bytes, %v; want %d", len(got), err, len(want))
		}
		var corrupt flate.CorruptInputError
		if errors.As(wantErr, &corrupt) && err == nil {
			t.Fatalf("%v was not noticed", wantErr)
		}
	})
}

// FuzzGzip holds it against the standard library on whole streams.
func FuzzGzip(f *testing.F) {
	for _, data := range samples() {
		f.Add(pack(f, 6, data[:min(len(data), 3000)]))
	}
	f.Fuzz(func(t *testing.T, packed []byte) {
		const most = 1 << 20
		var want []byte
		ref, wantErr := gzip.NewReader(bytes.NewReader(packed))
		if wantErr == nil {
			want, wantErr = io.ReadAll(io.LimitReader(ref, most))
		}
		z, err := NewReader(bytes.NewReader(packed))
		var got []byte
		if err == nil {
			got, err = io.ReadAll(io.LimitReader(z, most))
		}
		if wantErr == nil && (err != nil || !bytes.Equal(got, want)) {
			t.Fatalf("%d bytes, %v; want %d", len(got), err, len(want))
		}
		if wantErr != nil && err == nil && len(got) < most {
			t.Fatalf("%v was not noticed", wantErr)
		}
	})
}

// threadTime is the processor time of the calling thread so far. Nothing here asks the kernel for anything; of the
// user's share alone the kernel may know only how many of its ticks fell into it.
func threadTime(b *testing.B) time.Duration {
	b.Helper()
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// layers are what BenchmarkUnpack unpacks: by themselves what layers are made of, and archives of real ones, as far as
// there are any at the paths in INFLATE_LAYERS (packed with gzip, as registries have them).
func layers(b *testing.B) map[string][]byte {
	b.Helper()
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		b.Fatal(err)
	}
	var text []byte
	for _, f := range []string{
		"net/http/server.go", "runtime/proc.go", "go/types/expr.go",
		"cmd/compile/internal/ssa/rewriteAMD64.go",
	} {
		t, _ := os.ReadFile(runtime.GOROOT() + "/src/" + f) //nolint:staticcheck // any text will do
		text = append(text, t...)
	}
	noise := make([]byte, 8<<20)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	all := map[string][]byte{
		"program": pack(b, 6, self[:min(len(self), 8<<20)]), "text": pack(b, 6, text), "noise": pack(b, 6, noise),
	}
	for _, f := range filepath.SplitList(os.Getenv("INFLATE_LAYERS")) {
		if all[filepath.Base(f)], err = os.ReadFile(f); err != nil {
			b.Fatal(err)
		}
	}
	return all
}

// BenchmarkUnpack compares the processor time of this and other libraries, which is the same on a machine that does
// other things too. They take turns, so that what slows one down slows down all; each line has how many MB a second of
// it each unpacks.
func BenchmarkUnpack(b *testing.B) {
	libraries := []struct {
		name string
		open func(io.Reader) (io.Reader, error)
	}{
		{"here", func(r io.Reader) (io.Reader, error) { return NewReader(r) }},
		{"std", func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
		{"klauspost", func(r io.Reader) (io.Reader, error) { return kgzip.NewReader(r) }},
	}
	for name, packed := range layers(b) {
		b.Run(name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			spent := make([]time.Duration, len(libraries))
			size := 0
			buf := make([]byte, 256<<10)
			for b.Loop() {
				for i, l := range libraries {
					before := threadTime(b)
					z, err := l.open(bytes.NewReader(packed))
					size = 0
					for n := 0; err == nil; size += n {
						n, err = z.Read(buf)
					}
					if !errors.Is(err, io.EOF) {
						b.Fatal(err)
					}
					spent[i] += threadTime(b) - before
				}
			}
			for i, l := range libraries {
				b.ReportMetric(float64(size)*float64(b.N)/1e6/spent[i].Seconds(), l.name+"-MB/s")
			}
		})
	}
}

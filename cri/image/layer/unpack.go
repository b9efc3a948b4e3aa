package layer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/berth-node/berth/cri/image/inflate"
)

// maxWindow is what a zstd stream may make us remember: all that its command line makes without --ultra.
const maxWindow = 128 << 20

// maxTail is how much may follow the end of an archive: padding to the blocks of a tape, not a bomb.
const maxTail = 64 << 20

// Unpacked is a [Result] with the digest of the archive without its compression.
type Unpacked struct {
	Result
	DiffID digest.Digest
	Size   int64 // of the uncompressed archive
}

// Unpack writes the archive r, compressed or not, into dir. It reads r to its end. Reading, decompressing, hashing and
// writing go on at the same time; r must return when ctx ends.
func Unpack(ctx context.Context, r io.Reader, dir string, o Options) (Unpacked, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	packed := newFan(ctx, r, 1, packedChunk)
	defer func() { cancel(nil); <-packed.done }()
	dec, err := Decompress(packed.readers[0])
	if err != nil {
		return Unpacked{}, err
	}
	defer dec.Close()
	plain := newFan(ctx, dec, 2, plainChunk)
	defer func() { cancel(nil); <-plain.done }()
	hashed := make(chan error, 1)
	h := sha256.New()
	var size int64
	go func() {
		var err error
		size, err = plain.readers[0].WriteTo(h)
		hashed <- err
	}()
	res, err := Apply(ctx, plain.readers[1], dir, o)
	if err == nil {
		err = drain(plain.readers[1])
	}
	if err == nil {
		// What is left of the packed stream is not data; but it belongs to the blob and its digest.
		_, err = packed.readers[0].WriteTo(io.Discard)
	}
	if err != nil {
		cancel(err)
		<-hashed //nolint:errcheck // what it ended with follows from that
		return Unpacked{}, err
	}
	if err := <-hashed; err != nil {
		return Unpacked{}, err
	}
	return Unpacked{Result: res, DiffID: digest.NewDigest(digest.SHA256, h), Size: size}, nil
}

func drain(b *branch) error {
	n, err := io.Copy(io.Discard, io.LimitReader(b, maxTail+1))
	if err != nil {
		return fmt.Errorf("read layer: %w", err)
	}
	if n > maxTail {
		return errors.New("read layer: data after the end of the archive")
	}
	return nil
}

// Decompress reads what r is packed with: gzip, zstd or nothing.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case isGzip(magic):
		z, err := inflate.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("read gzip: %w", err)
		}
		return z, nil
	case isZstd(magic):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("read zstd: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}

// IsPacked says whether the first four bytes of a stream are those of something [Decompress] undoes.
func IsPacked(magic []byte) bool { return isGzip(magic) || isZstd(magic) }

func isGzip(magic []byte) bool { return len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b }

// isZstd knows a frame, and one that is to be skipped.
func isZstd(magic []byte) bool {
	return len(magic) >= 4 &&
		(string(magic[:4]) == "\x28\xb5\x2f\xfd" || magic[0]&0xf0 == 0x50 && string(magic[1:4]) == "\x2a\x4d\x18")
}

// Package inflate reads gzip, which is what image layers are packed with, a good deal faster than the libraries for Go.
//
// Unpacking is most of the work of a pull. What makes the difference: bits are taken from a 64-bit buffer that is
// filled eight bytes at a time, one look into a table yields a symbol together with its extra bits, up to three
// literals are decoded before the buffer is looked at again, and the output is its own window, so that nothing is
// copied twice.
//
// For real layers it is 1.5 (text) to 1.95 (libraries, programs) times as fast as klauspost/compress, the faster of the
// two that BenchmarkUnpack compares it with, in CPU time; docs/performance.md has the figures. It goes when a library
// that is linked anyway comes within 1.3 times: then its code is not worth keeping.
package inflate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

var (
	// ErrCorrupt says that the stream is not one that a compressor makes.
	ErrCorrupt = errors.New("gzip: corrupt data")
	// ErrHeader says that there is no gzip stream where one should begin.
	ErrHeader = errors.New("gzip: invalid header")
	// ErrChecksum says that the data are not those that were packed.
	ErrChecksum = errors.New("gzip: invalid checksum")
)

const (
	history  = 32 << 10 // as far as a match can reach back
	windowed = 256 << 10
	maxMatch = 258
	// slack of the window: a match is copied in words, so a little more than it may be written.
	slack = maxMatch + 32
	// ahead is how many input bytes the fast loop may touch before it asks for more.
	ahead = 16
)

type state int

const (
	inHeader state = iota
	inBlockHeader
	inStored
	inCodes
	inTrailer
)

// trailer is what a member ends with.
type trailer struct{ sum, size uint32 }

// Reader unpacks a stream of gzip members. It is not safe for concurrent use.
type Reader struct {
	src io.Reader
	err error

	in    []byte // in[pos:end] is input; at the end of src, ahead zeros follow
	pos   int
	end   int
	ended bool // src has no more
	bits  uint64
	nbits uint // of bits; what is above them is in the input still, too

	win []byte // win[:out] is the window and win[rd:out] not handed out yet
	rd  int
	out int
	// first byte of the window that matches can reach
	first int

	seen trailer // what the member's should say

	state  state
	final  bool
	stored int
	any    bool // a member was read

	lit   litTable
	dist  distTable
	codes codeTable
}

// NewReader reads the first header of r. It may read more from r than belongs to the stream.
func NewReader(r io.Reader) (*Reader, error) {
	z := &Reader{src: r, in: make([]byte, 64<<10+ahead), win: make([]byte, windowed+history+slack)}
	if err := z.header(); err != nil {
		return nil, err
	}
	return z, nil
}

// Read unpacks into p.
func (z *Reader) Read(p []byte) (int, error) {
	for z.rd == z.out {
		if z.err != nil {
			return 0, z.err
		}
		z.err = z.fill()
	}
	n := copy(p, z.win[z.rd:z.out])
	z.rd += n
	return n, nil
}

// Close lets the next call of Read fail.
func (z *Reader) Close() error {
	if z.err == nil {
		z.err = io.ErrClosedPipe
	}
	return nil
}

// fill decodes until the window is full or something ends. All that is in the window was handed out.
func (z *Reader) fill() error {
	if old := z.out - history; old > 0 {
		copy(z.win, z.win[old:z.out])
		z.out = history
		z.first = max(z.first-old, 0)
	}
	z.rd = z.out
	err := z.decode()
	z.seen.sum = crc32.Update(z.seen.sum, crc32.IEEETable, z.win[z.rd:z.out])
	z.seen.size += uint32(z.out - z.rd)
	if err == nil && z.state == inTrailer {
		if err = z.trailer(); err == nil {
			err = z.header()
		}
	}
	return err
}

// decode goes on with the member until the window is full or the member ends.
func (z *Reader) decode() error {
	for z.out < len(z.win)-slack {
		var err error
		switch z.state {
		case inBlockHeader:
			if z.final {
				z.align()
				z.state = inTrailer
				return nil
			}
			err = z.block()
		case inStored:
			err = z.copyStored()
		case inCodes:
			err = z.symbols()
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// more reads input until there is enough of it for the fast loop.
func (z *Reader) more() error {
	if z.ended {
		// The zeros behind the end are used up, so what was decoded from them was never there.
		return io.ErrUnexpectedEOF
	}
	// What is in the bit buffer may be given back.
	kept := int(z.nbits >> 3)
	z.end = copy(z.in, z.in[z.pos-kept:z.end])
	z.pos = kept
	for empty := 0; z.end-z.pos < ahead; {
		n, err := z.src.Read(z.in[z.end : len(z.in)-ahead])
		z.end += n
		if errors.Is(err, io.EOF) {
			z.ended = true
			clear(z.in[z.end : z.end+ahead])
			z.end += ahead
			return nil
		}
		if err != nil {
			return err
		}
		if n > 0 {
			empty = 0
		} else if empty++; empty == 100 {
			return io.ErrNoProgress
		}
	}
	return nil
}

// behind says that bits were taken that are not in the stream.
func (z *Reader) behind() bool {
	return z.ended && z.pos-int(z.nbits>>3) > z.end-ahead
}

// need fills the bit buffer; afterwards it has 56 bits at least.
func (z *Reader) need() error {
	if z.pos+8 > z.end {
		if err := z.more(); err != nil {
			return err
		}
	}
	z.bits |= binary.LittleEndian.Uint64(z.in[z.pos:]) << (z.nbits & 63)
	z.pos += int((63 - z.nbits) >> 3)
	z.nbits |= 56
	return nil
}

// take takes n bits that are in the buffer.
func (z *Reader) take(n uint) uint {
	v := uint(z.bits & (1<<(n&63) - 1))
	z.bits >>= n & 63
	z.nbits -= n
	return v
}

// align goes to the next whole byte, and gives bytes in the bit buffer back to the input.
func (z *Reader) align() {
	z.pos -= int(z.nbits >> 3)
	z.bits, z.nbits = 0, 0
}

// bytes returns the next n bytes of input; n is at most ahead.
func (z *Reader) bytes(n int) ([]byte, error) {
	for z.left() < n {
		if z.ended {
			return nil, io.ErrUnexpectedEOF
		}
		if err := z.more(); err != nil {
			return nil, err
		}
	}
	b := z.in[z.pos : z.pos+n]
	z.pos += n
	return b, nil
}

// left is how much input is there for sure.
func (z *Reader) left() int {
	if z.ended {
		return z.end - ahead - z.pos
	}
	return z.end - z.pos
}

// header reads the header of a member; io.EOF when none follows one that was read.
func (z *Reader) header() error {
	b, err := z.bytes(10)
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) && z.left() == 0 && z.any {
			return io.EOF
		}
		return err
	}
	if b[0] != 0x1f || b[1] != 0x8b || b[2] != 8 {
		return ErrHeader
	}
	const hasSum, hasExtra, hasName, hasComment = 2, 4, 8, 16
	flags := b[3]
	sum := crc32.Update(0, crc32.IEEETable, b)
	if flags&hasExtra != 0 {
		if b, err = z.bytes(2); err != nil {
			return err
		}
		sum = crc32.Update(sum, crc32.IEEETable, b)
		for n := int(b[0]) | int(b[1])<<8; n > 0; n -= len(b) {
			if b, err = z.bytes(min(n, ahead)); err != nil {
				return err
			}
			sum = crc32.Update(sum, crc32.IEEETable, b)
		}
	}
	for _, has := range []byte{flags & hasName, flags & hasComment} {
		for c := byte(1); has != 0 && c != 0; {
			if b, err = z.bytes(1); err != nil {
				return err
			}
			c = b[0]
			sum = crc32.Update(sum, crc32.IEEETable, b)
		}
	}
	if flags&hasSum != 0 {
		if b, err = z.bytes(2); err != nil {
			return err
		}
		if binary.LittleEndian.Uint16(b) != uint16(sum) {
			return ErrHeader
		}
	}
	z.state, z.final, z.any = inBlockHeader, false, true
	z.seen = trailer{}
	z.first = z.out // no match reaches into the member before
	return nil
}

func (z *Reader) trailer() error {
	b, err := z.bytes(8)
	if err != nil {
		return err
	}
	if (trailer{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])}) != z.seen {
		return ErrChecksum
	}
	return nil
}

// block reads the header of a block.
func (z *Reader) block() error {
	if err := z.need(); err != nil {
		return err
	}
	z.final = z.take(1) == 1
	var err error
	switch z.take(2) {
	case 0:
		z.align()
		b, err := z.bytes(4)
		if err != nil {
			return err
		}
		n := binary.LittleEndian.Uint16(b)
		if n != ^binary.LittleEndian.Uint16(b[2:]) {
			return fmt.Errorf("%w: length of a stored block", ErrCorrupt)
		}
		z.stored, z.state = int(n), inStored
	case 1:
		z.fixed()
		z.state = inCodes
	case 2:
		err = z.dynamic()
		z.state = inCodes
	default:
		err = fmt.Errorf("%w: type of a block", ErrCorrupt)
	}
	if z.behind() {
		return io.ErrUnexpectedEOF // rather than what the zeros behind the end look like
	}
	return err
}

func (z *Reader) copyStored() error {
	if z.stored == 0 {
		z.state = inBlockHeader
		return nil
	}
	if z.left() == 0 {
		if err := z.more(); err != nil {
			return err
		}
	}
	n := min(z.stored, z.left(), len(z.win)-slack-z.out)
	if n == 0 && z.left() == 0 {
		return io.ErrUnexpectedEOF
	}
	copy(z.win[z.out:], z.in[z.pos:z.pos+n])
	z.pos, z.out, z.stored = z.pos+n, z.out+n, z.stored-n
	return nil
}

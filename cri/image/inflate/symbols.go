package inflate

import (
	"encoding/binary"
	"fmt"
	"io"
)

// symbols decodes the block until it ends or the window is full. Everything it works with is in local variables, which
// is half of its speed; so it is one long loop.
func (z *Reader) symbols() error {
	in, pos := z.in[:z.end], z.pos
	bits, nbits := z.bits, z.nbits
	win, out := z.win, z.out
	limit, first := len(win)-slack, z.first
	lit, dist := &z.lit, &z.dist
	var err error
	for out < limit {
		// Twice eight bytes may be read below; each time at most seven of them are used up.
		if pos+ahead > len(in) {
			z.pos, z.nbits = pos, nbits
			if err = z.more(); err != nil {
				break
			}
			in, pos = z.in[:z.end], z.pos
			if pos+ahead > len(in) {
				err = io.ErrUnexpectedEOF
				break
			}
		}
		bits |= binary.LittleEndian.Uint64(in[pos:]) << (nbits & 63)
		pos += int((63 - nbits) >> 3)
		nbits |= 56
		e := lit[bits&(1<<litBits-1)]
		if e&isLiteral != 0 {
			bits >>= e & 63
			nbits -= uint(e & 63)
			win[out] = byte(e >> 16)
			out++
			e = lit[bits&(1<<litBits-1)]
			if e&isLiteral != 0 {
				bits >>= e & 63
				nbits -= uint(e & 63)
				win[out] = byte(e >> 16)
				out++
				e = lit[bits&(1<<litBits-1)]
				if e&isLiteral != 0 {
					bits >>= e & 63
					nbits -= uint(e & 63)
					win[out] = byte(e >> 16)
					out++
					continue
				}
			}
			bits |= binary.LittleEndian.Uint64(in[pos:]) << (nbits & 63)
			pos += int((63 - nbits) >> 3)
			nbits |= 56
		}
		if e&isSpecial != 0 {
			if e&isSecond != 0 {
				bits >>= litBits
				nbits -= litBits
				e = lit[uint64(e>>16&0x7fff)+bits&(1<<(e>>8&15)-1)]
				if e&isLiteral != 0 {
					bits >>= e & 63
					nbits -= uint(e & 63)
					win[out] = byte(e >> 16)
					out++
					continue
				}
			}
			if e&isSpecial != 0 {
				if e&isEnd == 0 {
					err = fmt.Errorf("%w: symbol", ErrCorrupt)
					break
				}
				bits >>= e & 63
				nbits -= uint(e & 63)
				z.state = inBlockHeader
				break
			}
		}
		length := int(e>>16) + int(bits&(1<<(e&63)-1)>>(e>>8&15))
		bits >>= e & 63
		nbits -= uint(e & 63)
		d := dist[bits&(1<<distBits-1)]
		if d&isSpecial != 0 {
			if d&isSecond != 0 {
				bits >>= distBits
				nbits -= distBits
				d = dist[uint64(d>>16&0x7fff)+bits&(1<<(d>>8&15)-1)]
			}
			if d&isSpecial != 0 {
				err = fmt.Errorf("%w: distance", ErrCorrupt)
				break
			}
		}
		distance := int(d>>16) + int(bits&(1<<(d&63)-1)>>(d>>8&15))
		bits >>= d & 63
		nbits -= uint(d & 63)
		if distance > out-first {
			err = fmt.Errorf("%w: distance before the beginning", ErrCorrupt)
			break
		}
		from := out - distance
		switch {
		case distance >= 8:
			// Words, also where the match overlaps itself: what a word reads was written before it.
			// Two of them without asking, because most matches are no longer.
			a, b := win[from:from+length+16], win[out:out+length+16]
			binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(a))
			binary.LittleEndian.PutUint64(b[8:], binary.LittleEndian.Uint64(a[8:]))
			for i := 16; i < length; i += 8 {
				binary.LittleEndian.PutUint64(b[i:], binary.LittleEndian.Uint64(a[i:]))
			}
		case distance == 1:
			word := uint64(win[from]) * 0x0101010101010101
			b := win[out : out+length+8]
			for i := 0; i < length; i += 8 {
				binary.LittleEndian.PutUint64(b[i:], word)
			}
		default:
			a, b := win[from:from+length], win[out:out+length]
			for i := range b {
				b[i] = a[i]
			}
		}
		out += length
	}
	z.pos, z.bits, z.nbits, z.out = pos, bits, nbits, out
	if z.behind() {
		return io.ErrUnexpectedEOF // rather than what the zeros behind the end look like
	}
	return err
}

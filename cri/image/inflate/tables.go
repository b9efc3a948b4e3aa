package inflate

import (
	"fmt"
	"math/bits"
)

// An entry of a table says all about a symbol:
//
//	bits 0-5   how many bits to take: of the code and of the extra bits
//	bits 8-11  how many of those are the code
//	bits 16-30 the literal, the base of the length or distance, or where the second table begins
//
// and these flags.
const (
	isLiteral = 1 << 31
	isSpecial = 1 << 15 // one of the next, or nothing at all
	isSecond  = 1 << 14 // codes longer than the first table; bits 8-11 say how many more bits
	isEnd     = 1 << 13
	isInvalid = isSpecial
)

const (
	litBits  = 11
	distBits = 8
	codeBits = 7
	maxBits  = 15

	maxLit  = 286
	maxDist = 30

	// Each second table holds at least two codes, so there are at most half as many as codes.
	litSize  = 1<<litBits + 288/2*(1<<(maxBits-litBits))
	distSize = 1<<distBits + 32/2*(1<<(maxBits-distBits))
)

type (
	litTable  [litSize]uint32
	distTable [distSize]uint32
	codeTable [1 << codeBits]uint32
)

// build fills a table for codes of the given lengths; symbol says what each stands for. As in other decoders, all bits
// must be assigned, unless there is a single code of one bit or none at all.
func build(table []uint32, first uint, lengths []uint8, symbol func(sym int) uint32) bool {
	var count [maxBits + 1]int
	longest := uint(0)
	for _, l := range lengths {
		count[l]++
		longest = max(longest, uint(l))
	}
	for i := range 1 << first {
		table[i] = isInvalid
	}
	if longest == 0 {
		return true
	}
	var next [maxBits + 2]uint
	code := uint(0)
	for l := uint(1); l <= longest; l++ {
		code <<= 1
		next[l] = code
		code += uint(count[l])
	}
	if code != 1<<longest && (code != 1 || longest != 1) {
		return false
	}
	second := uint(0) // bits of the second tables
	if longest > first {
		second = longest - first
	}
	free := uint(1) << first
	for sym, l8 := range lengths {
		l := uint(l8)
		if l == 0 {
			continue
		}
		// Codes come with their first bit lowest.
		rev := uint(bits.Reverse16(uint16(next[l]))) >> (16 - l)
		next[l]++
		if l <= first {
			e := symbol(sym) + uint32(l)<<8 + uint32(l)
			for i := rev; i < 1<<first; i += 1 << l {
				table[i] = e
			}
			continue
		}
		head := rev & (1<<first - 1)
		if table[head]&isSecond == 0 {
			table[head] = isSpecial | isSecond | uint32(free)<<16 | uint32(second)<<8 | uint32(first)
			for i := range uint(1) << second {
				table[free+i] = isInvalid
			}
			free += 1 << second
		}
		l -= first
		e := symbol(sym) + uint32(l)<<8 + uint32(l)
		start := uint(table[head] >> 16 & 0x7fff)
		for i := rev >> first; i < 1<<second; i += 1 << l {
			table[start+i] = e
		}
	}
	return true
}

// Lengths and distances of RFC 1951, 3.2.5: base and number of extra bits.
var (
	lengthBase = [...]uint16{
		3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227,
		258,
	}
	lengthExtra = [...]uint8{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0}
	distBase    = [...]uint16{
		1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097,
		6145, 8193, 12289, 16385, 24577,
	}
	distExtra = [...]uint8{
		0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13,
	}
	// The order in which the lengths of the codes for lengths come.
	codeOrder = [...]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}
)

func litSymbol(sym int) uint32 {
	switch {
	case sym < 256:
		return isLiteral | uint32(sym)<<16
	case sym == 256:
		return isSpecial | isEnd
	case sym < maxLit:
		return uint32(lengthBase[sym-257])<<16 + uint32(lengthExtra[sym-257])
	}
	return isInvalid
}

func distSymbol(sym int) uint32 {
	if sym < maxDist {
		return uint32(distBase[sym])<<16 + uint32(distExtra[sym])
	}
	return isInvalid
}

func codeSymbol(sym int) uint32 { return uint32(sym) << 16 }

// fixed sets the tables that every decoder knows.
func (z *Reader) fixed() {
	var lengths [288]uint8
	for i := range lengths {
		switch {
		case i < 144:
			lengths[i] = 8
		case i < 256:
			lengths[i] = 9
		case i < 280:
			lengths[i] = 7
		default:
			lengths[i] = 8
		}
	}
	build(z.lit[:], litBits, lengths[:], litSymbol)
	for i := range 32 {
		lengths[i] = 5
	}
	build(z.dist[:], distBits, lengths[:32], distSymbol)
}

// dynamic reads the tables of a block.
func (z *Reader) dynamic() error {
	lits, dists, codes := int(z.take(5))+257, int(z.take(5))+1, int(z.take(4))+4
	if lits > maxLit || dists > maxDist {
		return fmt.Errorf("%w: number of codes", ErrCorrupt)
	}
	var order [19]uint8
	for i := range codes {
		if err := z.need(); err != nil {
			return err
		}
		order[codeOrder[i]] = uint8(z.take(3))
	}
	if !build(z.codes[:], codeBits, order[:], codeSymbol) {
		return fmt.Errorf("%w: codes of code lengths", ErrCorrupt)
	}
	var lengths [maxLit + maxDist]uint8
	for i := 0; i < lits+dists; {
		if err := z.need(); err != nil {
			return err
		}
		e := z.codes[z.bits&(1<<codeBits-1)]
		if e&isSpecial != 0 {
			return fmt.Errorf("%w: code length", ErrCorrupt)
		}
		z.take(uint(e & 63))
		sym := e >> 16
		if sym < 16 {
			lengths[i] = uint8(sym)
			i++
			continue
		}
		value, times := uint8(0), 0
		switch sym {
		case 16:
			if i == 0 {
				return fmt.Errorf("%w: code length", ErrCorrupt)
			}
			value, times = lengths[i-1], 3+int(z.take(2))
		case 17:
			times = 3 + int(z.take(3))
		default:
			times = 11 + int(z.take(7))
		}
		if i+times > lits+dists {
			return fmt.Errorf("%w: number of code lengths", ErrCorrupt)
		}
		for range times {
			lengths[i] = value
			i++
		}
	}
	if !build(z.lit[:], litBits, lengths[:lits], litSymbol) ||
		!build(z.dist[:], distBits, lengths[lits:lits+dists], distSymbol) {
		return fmt.Errorf("%w: codes", ErrCorrupt)
	}
	return nil
}

package cli

import "io"

// visible shows control characters as people write them (^[ for escape): what containers and files are called and what they say could otherwise
// steer the terminal of who reads it.
type visible struct{ w io.Writer }

func (v visible) Write(p []byte) (int, error) {
	out := make([]byte, 0, len(p))
	for i := 0; i < len(p); i++ {
		switch b := p[i]; {
		case b == '\n' || b == '\t':
			out = append(out, b)
		case b < ' ' || b == 0x7f:
			out = append(out, '^', b^0x40)
		case b == 0xc2 && i+1 < len(p) && p[i+1] >= 0x80 && p[i+1] < 0xa0: // U+0080 to U+009F are escape and a letter in one
			i++
			out = append(out, '^', '[', p[i]-0x40)
		default:
			out = append(out, b)
		}
	}
	if _, err := v.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

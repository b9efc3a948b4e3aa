package commandline

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Visible returns a writer that shows on w what people cannot see, as they write it (^[ for escape): what containers,
// images and files are called and what they say could otherwise steer the terminal of who reads it, or have it read
// backwards. Lines and tabs stay.
func Visible(w io.Writer) io.Writer { return visible{w} }

// VisibleText is s as [Visible] would write it, for what has to be known in its width before it is written.
func VisibleText(s string) string {
	var b strings.Builder
	_, _ = visible{&b}.Write([]byte(s)) // a builder takes all
	return b.String()
}

type visible struct{ w io.Writer }

func (v visible) Write(p []byte) (int, error) {
	out := make([]byte, 0, len(p))
	for i := 0; i < len(p); {
		b := p[i]
		if b < utf8.RuneSelf {
			switch {
			case b == '\n' || b == '\t':
				out = append(out, b)
			case b < ' ' || b == 0x7f:
				out = append(out, '^', b^0x40)
			default:
				out = append(out, b)
			}
			i++
			continue
		}
		r, n := utf8.DecodeRune(p[i:])
		switch {
		case !utf8.FullRune(p[i:]): // the rest comes with the next piece
			n = len(p) - i
			out = append(out, p[i:]...)
		case r == utf8.RuneError && n == 1: // a terminal that is not of UTF-8 takes such a byte for escape and a letter
			out = fmt.Appendf(out, `\x%02x`, b)
		case r < 0xa0: // U+0080 to U+009F are escape and a letter in one
			out = append(out, '^', '[', byte(r)-0x40)
		case hidden(r):
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = append(out, p[i:i+n]...)
		}
		i += n
	}
	if _, err := v.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// hidden are the characters that change in which direction, on which line, or whether others are seen: all that Unicode
// has for formats, soft hyphens, annotations and tags among them, and for ends of lines.
func hidden(r rune) bool { return unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) }

// EscapedJSON is JSON with the same values that has no character in it which a terminal acts upon: those below U+0020
// cannot be in JSON, the others can be written as their numbers.
func EscapedJSON(b []byte) []byte {
	var out strings.Builder
	for _, r := range string(b) {
		if r == 0x7f || r >= 0x80 && r < 0xa0 || hidden(r) {
			for _, unit := range utf16.AppendRune(nil, r) { // JSON has numbers of four digits only
				fmt.Fprintf(&out, `\u%04x`, unit)
			}
			continue
		}
		out.WriteRune(r)
	}
	return []byte(out.String())
}

package inspect

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// visible shows as people write them (^[ for escape) the characters of a line that would steer a terminal or make
// another line: processes are called what their container likes, groups below a container's too, and a capture may come
// from anybody.
func visible(s string) string {
	if !strings.ContainsFunc(s, steers) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r < ' ' || r == 0x7f:
			b.WriteString("^" + string(r^0x40))
		case r >= 0x80 && r < 0xa0: // escape and a letter in one
			b.WriteString("^[" + string(r-0x40))
		case steers(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// steers says of a character that it is not shown as itself: controls, and those that turn the direction of a line.
func steers(r rune) bool {
	if r < utf8.RuneSelf { // most of all there is
		return r < ' ' || r == 0x7f
	}
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// shown says of a text that all of it is ASCII that a terminal shows as it is, lines and tabs apart.
func shown(text []byte) bool {
	for _, c := range text {
		if c < ' ' && c != '\n' && c != '\t' || c >= 0x7f {
			return false
		}
	}
	return true
}

// machineReadable writes JSON and YAML, in which a reader's terminal would still obey what these allow unescaped: both
// take \u in strings, and neither has such characters elsewhere.
type machineReadable struct{ w io.Writer }

func (m machineReadable) Write(p []byte) (int, error) {
	if shown(p) {
		return m.w.Write(p)
	}
	s := string(p)
	if strings.ContainsFunc(s, func(r rune) bool { return r != '\n' && r != '\t' && steers(r) }) {
		var b strings.Builder
		for _, r := range s {
			switch {
			case r == '\n' || r == '\t' || !steers(r):
				b.WriteRune(r)
			case r > 0xffff:
				fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
			default:
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		}
		s = b.String()
	}
	if _, err := io.WriteString(m.w, s); err != nil {
		return 0, err
	}
	return len(p), nil
}

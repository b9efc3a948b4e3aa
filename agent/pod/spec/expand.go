package spec

import (
	"errors"
	"fmt"
	"strings"
)

// What the kernel takes of the arguments and the environment of a program: of one string (MAX_ARG_STRLEN), and of all
// (three quarters of _STK_LIM). References to values that have references themselves make ten times as much of each
// line.
const (
	maxString  = 128 << 10
	maxStrings = 6 << 20
)

// expand replaces $(NAME) by what lookup has for it, and $$ by $. What lookup does not know, and what is no reference,
// stays as it is.
func expand(s string, lookup func(string) (string, bool)) (string, error) {
	if !strings.Contains(s, "$") {
		return s, nil
	}
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			b.WriteString(s)
			return b.String(), nil
		}
		b.WriteString(s[:i])
		s = s[i+1:]
		switch s[0] {
		case '$':
			b.WriteByte('$')
			s = s[1:]
		case '(':
			end := strings.IndexByte(s, ')')
			if end < 0 {
				b.WriteString("$(")
				s = s[1:]
				continue
			}
			v, ok := lookup(s[1:end])
			if !ok {
				v = "$" + s[:end+1]
			}
			if b.Len()+len(v) >= maxString {
				return "", fmt.Errorf("with its references it has more than the %d bytes that the kernel takes of a string", maxString-1)
			}
			b.WriteString(v)
			s = s[end+1:]
		default:
			b.WriteByte('$')
		}
	}
}

func expandAll(list []string, lookup func(string) (string, bool)) ([]string, error) {
	var out []string
	size := 0
	for i, s := range list {
		text, err := expand(s, lookup)
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
		if size += len(text) + 1; size > maxStrings {
			return nil, errTooMuch
		}
		out = append(out, text)
	}
	return out, nil
}

var errTooMuch = errors.New("arguments or environment have more than the 6 MiB that the kernel takes of them")

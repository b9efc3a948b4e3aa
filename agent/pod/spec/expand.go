package spec

import "strings"

// expand replaces $(NAME) by what lookup has for it, and $$ by $. What lookup does not know, and what is no reference, stays as
// it is.
func expand(s string, lookup func(string) (string, bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			b.WriteString(s)
			return b.String()
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
			if v, ok := lookup(s[1:end]); ok {
				b.WriteString(v)
			} else {
				b.WriteString("$" + s[:end+1])
			}
			s = s[end+1:]
		default:
			b.WriteByte('$')
		}
	}
}

func expandAll(list []string, lookup func(string) (string, bool)) []string {
	var out []string
	for _, s := range list {
		out = append(out, expand(s, lookup))
	}
	return out
}

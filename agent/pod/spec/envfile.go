package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// MaxEnvFile is how many bytes an env file may have.
const MaxEnvFile = 64 << 10

// fileKeyRef is what an env file says of a key. An empty value is a value, and of a key that comes twice the last one
// counts, as for a shell.
func (g *gatherer) fileKeyRef(ref *corev1.FileKeySelector) (string, bool, error) {
	vars, err := g.envFile(ref)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, unlessOptional(ref.Optional, fmt.Errorf("volume %s has no file %s", ref.VolumeName, ref.Path))
	}
	if err != nil {
		return "", false, fmt.Errorf("file %s of volume %s: %w", ref.Path, ref.VolumeName, err)
	}
	if value, ok := vars[ref.Key]; ok {
		return value, true, nil
	}
	return "", false, unlessOptional(ref.Optional, fmt.Errorf("couldn't find key %s in file %s of volume %s", ref.Key, ref.Path, ref.VolumeName))
}

// envFile reads a file once for all variables that come from it.
func (g *gatherer) envFile(ref *corev1.FileKeySelector) (map[string]string, error) {
	at := [2]string{ref.VolumeName, ref.Path}
	if vars, ok := g.files[at]; ok {
		return vars, nil
	}
	data, err := g.in.EnvFile(ref.VolumeName, ref.Path)
	if err != nil {
		return nil, err
	}
	vars, err := ParseEnvFile(string(data))
	if err != nil {
		return nil, err
	}
	if g.files == nil {
		g.files = map[[2]string]map[string]string{}
	}
	g.files[at] = vars
	return vars, nil
}

// ParseEnvFile parses an env file: NAME='value', as a POSIX shell would take it (KEP-3721). A value is what is between
// single quotes, line feeds too; nothing in it has a meaning. Blank lines are skipped, as is what begins with # on a
// line of its own or, after white space, behind a value. The errors name the line, but not what is in it, since that
// may be a secret.
func ParseEnvFile(text string) (map[string]string, error) {
	vars := map[string]string{}
	for line := 1; text != ""; {
		rest := strings.TrimLeft(text, " \t")
		if rest == "" || rest[0] == '\n' || rest[0] == '#' {
			_, text, _ = strings.Cut(rest, "\n")
			line++
			continue
		}
		name, value, rest, err := assignment(rest)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		line += strings.Count(value, "\n")
		tail, after, _ := strings.Cut(rest, "\n")
		if err := checkTail(tail); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		vars[name] = value
		text = after
		line++
	}
	return vars, nil
}

// assignment takes NAME='value' off the beginning of a text.
func assignment(text string) (name, value, rest string, err error) {
	end := strings.IndexAny(text, "=\n")
	if end < 0 || text[end] == '\n' {
		return "", "", "", errors.New("there is no '=' in it: must be NAME='value'")
	}
	name, rest = text[:end], text[end+1:]
	if name == "" {
		return "", "", "", errors.New("there is no name before '='")
	}
	for _, c := range []byte(name) {
		switch {
		case c == ' ' || c == '\t':
			return "", "", "", errors.New("white space is not allowed in a name or before '='")
		case c < ' ' || c > '~':
			return "", "", "", errors.New("a name must be of printable ASCII characters")
		}
	}
	if !strings.HasPrefix(rest, "'") {
		return "", "", "", errors.New("the value must be enclosed in single quotes, with no space after '='")
	}
	value, rest, ok := strings.Cut(rest[1:], "'")
	switch {
	case !ok:
		return "", "", "", errors.New("the single quote that begins here is never closed")
	case strings.Contains(value, "\x00"):
		return "", "", "", errors.New("a value must not contain a NUL byte")
	}
	return name, value, rest, nil
}

// checkTail looks at what follows a value on its line.
func checkTail(tail string) error {
	trimmed := strings.TrimLeft(tail, " \t")
	switch {
	case trimmed == "", trimmed[0] == '#' && trimmed != tail:
		return nil
	case trimmed == "\r":
		return errors.New("it ends with a carriage return: lines must end with a line feed alone")
	}
	return errors.New("there is more after the closing quote: must be nothing, or a comment after white space")
}

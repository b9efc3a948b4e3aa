// Package filter says where the compiled seccomp filters of profiles are: libcontainer's launcher compiles them, and
// who starts a container otherwise takes what is there.
package filter

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// format is part of a compiled filter's name: a change of how filters are compiled must not meet those that an
// older helper has left.
const format = "1"

// Path is where the compiled filter of a profile is kept, below libcontainer's directory of states.
func Path(state string, p *specs.LinuxSeccomp) (string, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("encode seccomp profile: %w", err)
	}
	sum := sha256.Sum256(append([]byte(format), b...))
	return filepath.Join(state, ".seccomp", hex.EncodeToString(sum[:])), nil
}

// Keep leaves a compiled filter in a bundle, for later execs.
func Keep(bundle, compiled string, filter []byte) error {
	out := filepath.Join(bundle, "seccomp.bpf")
	if err := os.Remove(out); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep filter: %w", err)
	}
	// A link where it can be one: a filter has some kilobytes, and a pod many.
	if os.Link(compiled, out) == nil {
		return nil
	}
	if err := os.WriteFile(out, filter, 0o600); err != nil {
		return fmt.Errorf("keep filter: %w", err)
	}
	return nil
}

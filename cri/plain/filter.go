package plain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cri/filter"
)

// Prepare takes the seccomp filter of a container and makes its groups. The first container with a profile is not
// ordinary: libcontainer's launcher compiles it, which takes a library that is not here.
func (s *Start) Prepare(spec *specs.Spec, bundle, state string) error {
	if p := spec.Linux.Seccomp; p != nil && (p.DefaultAction != "" || len(p.Syscalls) > 0) {
		compiled, err := filter.Path(state, p)
		if err != nil {
			return err
		}
		s.Seccomp, err = os.ReadFile(compiled)
		if errors.Is(err, fs.ErrNotExist) {
			return errNoFilter
		}
		if err == nil {
			err = filter.Keep(bundle, compiled, s.Seccomp)
		}
		if err != nil {
			return fmt.Errorf("take seccomp filter: %w", err)
		}
	}
	return s.MakeGroups()
}

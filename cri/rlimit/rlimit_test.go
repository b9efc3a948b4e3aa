package rlimit

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestKind(t *testing.T) {
	for _, name := range []string{"RLIMIT_NOFILE", "rlimit_nofile"} {
		if n, err := Kind(name); n != unix.RLIMIT_NOFILE || err != nil {
			t.Errorf("%s is %d, %v", name, n, err)
		}
	}
	for _, name := range []string{"", "nofile", "RLIMIT_", "RLIMIT_NOFILE "} {
		if n, err := Kind(name); err == nil {
			t.Errorf("%q is %d", name, n)
		}
	}
	seen := map[uint32]string{}
	for name, n := range kinds {
		if seen[n] != "" || n >= 16 {
			t.Errorf("%s is %d, and so is %q", name, n, seen[n])
		}
		seen[n] = name
	}
	if len(kinds) != 16 {
		t.Errorf("%d are known, and the kernel has 16 (asm-generic/resource.h)", len(kinds))
	}
}

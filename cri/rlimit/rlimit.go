// Package rlimit knows the kernel's limits of resources by the names that the OCI runtime specification has for them
// (process.rlimits).
package rlimit

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

var kinds = map[string]uint32{
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_CPU": unix.RLIMIT_CPU,
	"RLIMIT_DATA": unix.RLIMIT_DATA, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE,
	"RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE,
	"RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_NPROC": unix.RLIMIT_NPROC,
	"RLIMIT_RSS": unix.RLIMIT_RSS, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME": unix.RLIMIT_RTTIME, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
	"RLIMIT_STACK": unix.RLIMIT_STACK,
}

// Kind is the number that setrlimit(2) takes for a name, in upper or lower case. It fails for a name that is none.
func Kind(name string) (uint32, error) {
	n, ok := kinds[strings.ToUpper(name)]
	if !ok {
		return 0, fmt.Errorf("rlimit %q is not known", name)
	}
	return n, nil
}

// Package fault has the kinds of errors that clients of the CRI tell apart.
package fault

import (
	"errors"
	"fmt"
)

// The kinds. Each has a code of gRPC, by which clients know it.
var (
	// ErrNotFound is NotFound: what the call is about is not there. To kubelet that is as good as removed.
	ErrNotFound = errors.New("not found")
	// ErrExists is AlreadyExists: somebody else has the name.
	ErrExists = errors.New("already exists")
	// ErrInvalid is InvalidArgument: the request would fail again, whatever the state of the node is.
	ErrInvalid = errors.New("invalid argument")
	// ErrPrecondition is FailedPrecondition: it needs another state of the sandbox, container or node first.
	ErrPrecondition = errors.New("not possible in this state")
	// ErrUnavailable is Unavailable: who is needed for it does not answer. The same call may succeed later.
	ErrUnavailable = errors.New("not possible at the moment")
)

// Invalidf is an error of kind [ErrInvalid].
func Invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

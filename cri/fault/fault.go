// Package fault has the kinds of errors that clients of the CRI tell apart.
package fault

import (
	"errors"
	"fmt"
)

var (
	ErrNotFound     = errors.New("not found")
	ErrExists       = errors.New("already exists")
	ErrInvalid      = errors.New("invalid argument")
	ErrPrecondition = errors.New("not possible in this state")
	ErrUnavailable  = errors.New("not possible at the moment")
)

// Invalidf is an error of kind [ErrInvalid].
func Invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

package cri

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/image/registry"
)

var (
	errNotFound     = errors.New("not found")
	errExists       = errors.New("already exists")
	errInvalid      = errors.New("invalid argument")
	errPrecondition = errors.New("not possible in this state")
	errUnavailable  = errors.New("not possible at the moment")
)

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errInvalid, fmt.Errorf(format, args...))
}

// asStatus gives an error the code that CRI clients look at. It is applied once, where an error leaves the package.
func asStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Unknown
	switch {
	// Of hosts that stand in for each other one may have refused what another does not have.
	case errors.Is(err, registry.ErrForbidden):
		code = codes.PermissionDenied
	case errors.Is(err, registry.ErrDenied):
		code = codes.Unauthenticated
	case errors.Is(err, errNotFound), errors.Is(err, image.ErrNotFound), errors.Is(err, registry.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, errExists):
		code = codes.AlreadyExists
	case errors.Is(err, errInvalid):
		code = codes.InvalidArgument
	case errors.Is(err, errUnavailable):
		code = codes.Unavailable
	case errors.Is(err, errPrecondition):
		code = codes.FailedPrecondition
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, errors.ErrUnsupported):
		code = codes.Unimplemented
	}
	return status.Error(code, err.Error())
}

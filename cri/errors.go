package cri

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/image/registry"
)

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
	case errors.Is(err, fault.ErrNotFound), errors.Is(err, image.ErrNotFound), errors.Is(err, registry.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, fault.ErrExists):
		code = codes.AlreadyExists
	case errors.Is(err, fault.ErrInvalid):
		code = codes.InvalidArgument
	case errors.Is(err, fault.ErrUnavailable):
		code = codes.Unavailable
	case errors.Is(err, fault.ErrPrecondition):
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

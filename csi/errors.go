package csi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrNotRegistered is of a driver that is not there: what needs it waits until it comes ([Drivers.Subscribe]).
var ErrNotRegistered = errors.New("CSI driver is not registered")

// Error is the error of a call: the driver's own, or of the connection to it.
type Error struct {
	Driver  string
	Method  string // NodeStageVolume
	Code    codes.Code
	Message string // bounded, on one line, without the secrets of the call
	Unread  bool   // the code is gRPC's own, and not the driver's: what that has said is not known
}

// unread says whether an error is gRPC's own, by a code that drivers have, too: for an answer that is too long, makes
// no sense or is none, for a stream that was reset, and for a server of something else. Which it is the text alone
// tells. A driver that answers with one of these has its call be repeated, which it has to stand in any case.
func unread(st *status.Status) bool {
	if st.Code() == codes.Unknown && st.Message() == "" { // it has ended without a code
		return true
	}
	for _, own := range []string{
		"grpc: received ", "grpc: failed to ", "grpc: message after decompression ", "grpc: compressed flag ", "grpc: no decompressor ",
		"grpc: Decompressor is not installed", "grpc: peer compressed ", "cardinality violation: ", "transport: ", "malformed header: ",
		"protocol error: ", "unexpected HTTP status code ", "stream terminated by RST_STREAM", "server closed the stream without ",
		"peer header list size exceeded", "a HEADERS frame cannot appear", "received invalid frame",
	} {
		if strings.HasPrefix(st.Message(), own) {
			return true
		}
	}
	return false
}

// known is a code of the specification: others are that of an error of which nothing is known, as gRPC wants it.
func known(c codes.Code) codes.Code {
	if c > codes.Unauthenticated {
		return codes.Unknown
	}
	return c
}

func (e *Error) Error() string {
	return fmt.Sprintf("call %s of CSI driver %s: %s: %s", e.Method, e.Driver, e.Code, e.Message)
}

// GRPCStatus is for [status.FromError].
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// Is has a call that was given up be known by the context's own errors.
func (e *Error) Is(target error) bool {
	return e.Code == codes.Canceled && target == context.Canceled ||
		e.Code == codes.DeadlineExceeded && target == context.DeadlineExceeded
}

// Final says that a call is over, with nothing going on of it at the driver: the same call again gives the same answer
// until somebody has changed something (the specification's "Error Scheme"). What is not final may have had its effect,
// or have it yet: only the same call again, or the one that undoes it, tells.
func Final(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Unread {
		return false
	}
	switch e.Code {
	case codes.OK,
		codes.Canceled, codes.DeadlineExceeded, // given up here; the driver may go on
		codes.Unavailable, // there is no driver, or it has gone with the call
		codes.Aborted:     // the volume has an operation pending
		return false
	}
	return true
}

// CodeOf is the code that a driver has answered a call with, or that says why there is no answer; [codes.Unknown] of
// any other error, and of an answer that could not be read.
func CodeOf(err error) codes.Code {
	if e, ok := errors.AsType[*Error](err); ok && !e.Unread {
		return e.Code
	}
	return codes.Unknown
}

// maxMessage is how much is kept of what a driver says, in bytes.
const maxMessage = 1 << 10

// Text makes a driver's message fit to be shown: one line, bounded, valid UTF-8.
func Text(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), 2*maxMessage)], "?")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
	if len(s) <= maxMessage {
		return s
	}
	end := maxMessage - len("...")
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}

package apiserver

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// roomy authenticates requests: the first of what is done in the goroutine that each of them has. There it has the
// stack be as large as what follows needs. A stack begins with a few kilobytes, and whenever it is full the runtime
// copies it to one of twice the size, frame by frame. With a hundred frames of the library on it that was a tenth of
// what it costs to answer; here there are ten.
type roomy struct {
	authenticator.Request
	// long says which requests last, as watches do: theirs would keep a large stack.
	long request.LongRunningRequestCheck
}

// AuthenticateRequest implements [authenticator.Request].
func (a roomy) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if info, ok := request.RequestInfoFrom(r.Context()); ok && !a.long(r, info) {
		reserve(0)
	}
	return a.Request.AuthenticateRequest(r)
}

// reserved is what a request needs at most of a stack, in bytes, but for few.
const reserved = 20 << 10

// reserve has a frame of that size, for which the runtime makes the stack large enough before it looks whether there is
// anything to do. It stays so until garbage is collected at the earliest.
//
//go:noinline
func reserve(use int) byte {
	if use == 0 {
		return 0
	}
	var room [reserved]byte // it would be cleared each time
	return room[use%reserved]
}

package apiserver

import (
	"net/http"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// BenchmarkStack is a request whose goroutine needs a stack of some size, of which little is on it at first.
func BenchmarkStack(b *testing.B) {
	for _, c := range []struct {
		name string
		long bool
	}{{"grown at once", false}, {"grown as needed", true}} {
		b.Run(c.name, func(b *testing.B) {
			a := roomy{who{}, func(*http.Request, *request.RequestInfo) bool { return c.long }}
			for b.Loop() {
				r, err := http.NewRequest(http.MethodGet, "/", nil)
				if err != nil {
					b.Fatal(err)
				}
				r = r.WithContext(request.WithRequestInfo(b.Context(), &request.RequestInfo{}))
				done := make(chan struct{})
				go func() {
					defer close(done)
					if _, ok, err := a.AuthenticateRequest(r); !ok || err != nil {
						b.Error(ok, err)
					}
					deep(100)
				}()
				<-done
			}
		})
	}
}

// who knows everybody.
type who struct{}

// AuthenticateRequest implements [authenticator.Request].
func (who) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: &user.DefaultInfo{Name: "a"}}, true, nil
}

// deep has so many frames on the stack.
//
//go:noinline
func deep(frames int) int {
	var room [16]int
	if frames > 0 {
		room[frames%16] = deep(frames - 1)
	}
	return room[0] + room[frames%16] + 1
}

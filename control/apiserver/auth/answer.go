package auth

import (
	"fmt"
	"io"
	"net/http"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// What a webhook may answer, in bytes: client-go keeps all that it says, and whoever serves one could else have the API
// server take any amount of memory until the call's time is over. It answers with a patch or with the objects that it
// was given in another version, so that much that is asked may have a long answer.
const (
	maxAnswer = 16 << 20
	timesAsk  = 4
)

// Bound has the answers of the webhooks bounded that c is for.
func Bound(c *rest.Config) {
	c.Wrap(func(t http.RoundTripper) http.RoundTripper { return bounded{t} })
}

// BoundWebhooks has the answers of all webhooks bounded that next says how to reach. Those of the API server itself are
// not webhooks.
func BoundWebhooks(next webhook.AuthenticationInfoResolverWrapper, self *rest.Config) webhook.AuthenticationInfoResolverWrapper {
	return func(of webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		found := next(of)
		bound := func(c *rest.Config, err error) (*rest.Config, error) {
			if err == nil && c != self {
				Bound(c)
			}
			return c, err
		}
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(host string) (*rest.Config, error) { return bound(found.ClientConfigFor(host)) },
			ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
				return bound(found.ClientConfigForService(name, namespace, port))
			},
		}
	}
}

type bounded struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		most := max(maxAnswer, timesAsk*r.ContentLength)
		resp.Body = &boundedBody{ReadCloser: resp.Body, most: most, left: most}
	}
	return resp, err
}

type boundedBody struct {
	io.ReadCloser
	most, left int64
}

// Read implements [io.Reader].
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the webhook answers with more than %d bytes", b.most)
	}
	return n, err
}

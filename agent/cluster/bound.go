package cluster

import (
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxTold is how much is told of what an API server says is wrong, in bytes.
const maxTold = 1 << 10

func clip(text string) string {
	if len(text) <= maxTold {
		return text
	}
	return strings.ToValidUTF8(text[:maxTold], "") + "..."
}

// maxAnswer is how long an answer may be, in bytes, that is no watch: a client of the API keeps all that there is. The
// 500 pods of a large node have some 10 MB. The events of a watch client-go bounds itself.
const maxAnswer = 32 << 20

// bounded has the reading of an answer fail that is longer than maxAnswer.
type bounded struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	endless := resp != nil && (isWatch(r) && resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusSwitchingProtocols)
	if err == nil && !endless {
		resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxAnswer}
	}
	return resp, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

// Read implements [io.Reader].
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left+1)])
	if b.left -= n; b.left < 0 {
		return 0, fmt.Errorf("the answer of the API server is longer than %d bytes", maxAnswer)
	}
	return n, err
}

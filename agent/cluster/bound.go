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
// 500 pods of a large node have some 10 MB.
const maxAnswer = 32 << 20

const contentProtobuf = "application/vnd.kubernetes.protobuf"

// maxEvent is how long an event of a watch may be. client-go holds those that have their length before them to it; of
// JSON it takes whatever comes until the value ends. It takes for JSON what says that it is, however that is written,
// and what does not say what it is.
const maxEvent = 16 << 20

// bounded has the reading of an answer fail that is longer than maxAnswer, or that has a longer event than maxEvent.
type bounded struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if isWatch(r) {
		// A server compresses a watch that begins with what there is, and what decompresses it takes 44 KB for as long
		// as the watch lasts: a node has hundreds.
		r = r.Clone(r.Context())
		r.Header.Set("Accept-Encoding", "identity")
	}
	resp, err := b.RoundTripper.RoundTrip(r)
	switch {
	case err != nil || resp.StatusCode == http.StatusSwitchingProtocols:
	case !isWatch(r) || resp.StatusCode != http.StatusOK:
		resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxAnswer}
	case !strings.HasPrefix(resp.Header.Get("Content-Type"), contentProtobuf):
		resp.Body = &boundedEvents{ReadCloser: resp.Body}
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

// boundedEvents are those of a watch in JSON. A server ends each with a new line, but may have others in the midst of
// one, which go on until their outermost brace is closed.
type boundedEvents struct {
	io.ReadCloser
	event   int // bytes since the last one has ended
	depth   int // of braces and brackets
	text    bool
	escaped bool // the next byte of the text is no quote
}

// Read implements [io.Reader].
func (b *boundedEvents) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for _, c := range p[:n] {
		b.event++
		b.take(c)
	}
	if b.event > maxEvent {
		return 0, fmt.Errorf("an event of the API server is longer than %d bytes", maxEvent)
	}
	return n, err
}

// take looks at a byte. What is no JSON has no end, which ends it in time.
func (b *boundedEvents) take(c byte) {
	switch {
	case b.escaped:
		b.escaped = false
	case b.text:
		b.text, b.escaped = c != '"', c == '\\'
	case c == '"':
		b.text = true
	case c == '{' || c == '[':
		b.depth++
	case c == '}' || c == ']':
		if b.depth--; b.depth <= 0 {
			b.depth, b.event = 0, 0
		}
	}
}

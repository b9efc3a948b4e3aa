package stream

import (
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// validity is how long a client has to open a URL.
	validity = time.Minute
	// maxOffers is how many URLs may wait for their clients.
	maxOffers = 1000
)

// offers is what URLs have been handed out for. A URL is good once, and for a while: who knows it needs nothing else.
type offers struct {
	mu     sync.Mutex
	byPath map[string]offer
}

type offer struct {
	serve   http.HandlerFunc
	expires *time.Timer
}

// add returns the path of a URL that is not to be guessed.
func (o *offers) add(kind string, serve http.HandlerFunc) (string, error) {
	path := "/" + kind + "/" + rand.Text()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.byPath) >= maxOffers {
		return "", status.Errorf(codes.ResourceExhausted, "%s: %d URLs have been handed out and not been opened", kind, maxOffers)
	}
	if o.byPath == nil {
		o.byPath = map[string]offer{}
	}
	o.byPath[path] = offer{serve, time.AfterFunc(validity, func() { o.take(path) })}
	return path, nil
}

func (o *offers) take(path string) (http.HandlerFunc, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	x, ok := o.byPath[path]
	if !ok {
		return nil, false
	}
	delete(o.byPath, path)
	x.expires.Stop()
	return x.serve, true
}

package cluster

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// pauses are how long is waited before something is tried again.
type pauses struct {
	first, most time.Duration // after an error, doubled each time
	denied      time.Duration // after somebody has said no, or a certificate that is no good
	refused     time.Duration // until another certificate is had than one that the API server does not know
}

func defaultPauses() pauses {
	return pauses{first: 2 * time.Second, most: 30 * time.Second, denied: 15 * time.Minute, refused: time.Minute}
}

// tries counts what has failed, and what has succeeded in vain.
type tries struct {
	n    int
	had  bool
	last string
}

// succeeded waits if there was a success right before: a signer whose certificates are due as soon as they are made is
// not to be asked without end.
func (t *tries) succeeded(ctx context.Context, p pauses) {
	if t.had {
		_ = pause(ctx, t.pause(p, nil)) // ctx has ended: whoever asks next sees that
	}
	t.had = true
}

func (t *tries) reset() { *t = tries{} }

// another says whether an error is not the one of the last time.
func (t *tries) another(err error) bool {
	was := t.last
	t.last = err.Error()
	return was != t.last
}

// pause is how long is waited after an error.
func (t *tries) pause(p pauses, err error) time.Duration {
	var bad *badCertificateError
	if errors.Is(err, errDenied) || errors.Is(err, errFailed) || errors.As(err, &bad) {
		return jitter(p.denied)
	}
	t.n++
	return jitter(min(p.first<<min(t.n-1, 16), p.most))
}

// jitter is up to a tenth more: the nodes of a cluster that was away come back at once.
func jitter(d time.Duration) time.Duration { return d + time.Duration(rand.Float64()*float64(d)/10) }

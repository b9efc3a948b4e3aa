package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// keyed are locks by ID. Who waits for one does so no longer than its context.
type keyed struct {
	mu   sync.Mutex
	busy map[string]chan struct{} // closed when it is free
}

// lock waits until nobody else does anything with an ID.
func (k *keyed) lock(ctx context.Context, id string) (free func(), err error) {
	for {
		free, wait := k.take(id)
		if wait == nil {
			return free, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			// CSI, "Error Scheme": an operation on it is pending.
			return nil, status.Errorf(codes.Aborted, "something else is being done with %q", shorten(id))
		}
	}
}

func (k *keyed) take(id string) (free func(), wait <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if wait := k.busy[id]; wait != nil {
		return nil, wait
	}
	if k.busy == nil {
		k.busy = map[string]chan struct{}{}
	}
	done := make(chan struct{})
	k.busy[id] = done
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.busy, id)
		close(done)
	}, nil
}

// The kinds of IDs.
const (
	volumeKind   = "v"
	inlineKind   = "e"
	snapshotKind = "s"
	groupKind    = "g"
)

// idOf is the ID of what is asked for by a name: one name has one ID, so that asking twice finds the same, and whatever
// a name has in it, the ID can be part of a path.
func idOf(kind, name string) string {
	sum := sha256.Sum256([]byte(kind + "\x00" + name))
	return kind + "-" + hex.EncodeToString(sum[:16])
}

// maxShown bounds what is repeated of a request in an error.
const maxShown = 140

func shorten(s string) string {
	if len(s) > maxShown {
		return s[:maxShown] + "..."
	}
	return s
}

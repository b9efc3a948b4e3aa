package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/internal/keylock"
)

// locks are by ID.
type locks struct{ byID keylock.Locks[string] }

// lock waits until nobody else does anything with an ID, no longer than its context.
func (l *locks) lock(ctx context.Context, id string) (free func(), err error) {
	free, err = l.byID.Lock(ctx, id)
	if err != nil {
		// CSI, "Error Scheme": an operation on it is pending.
		return nil, status.Errorf(codes.Aborted, "something else is being done with %q", shorten(id))
	}
	return free, nil
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

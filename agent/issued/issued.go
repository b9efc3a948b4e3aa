// Package issued keeps what pods of an API server were issued, tokens and certificates, for a start of the machine at
// which the server does not answer.
package issued

import (
	"context"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Store keeps things of pods over the machine's end, sealed, each under a name.
type Store interface {
	// Hand keeps something of a pod under a name, and waits until that is on the disk, or cannot be for now.
	Hand(ctx context.Context, uid types.UID, name string, data []byte)
	// Handed is what was kept.
	Handed(uid types.UID, name string) ([]byte, bool)
}

// timeout is how long something that was issued waits for a disk that hangs.
const timeout = 3 * time.Second

// Keep keeps something that a pod was issued, as JSON, before the pod has it. With no store nothing is kept.
func Keep(ctx context.Context, k Store, uid types.UID, name string, value any) {
	if k == nil {
		return
	}
	text, err := json.Marshal(value)
	if err != nil {
		return // it is kept for a better start, which is not worth a failure of this one
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	k.Hand(ctx, uid, name, text)
}

// Kept reads what was kept. It is false where nothing was, or what cannot be read.
func Kept(k Store, uid types.UID, name string, into any) bool {
	if k == nil {
		return false
	}
	text, ok := k.Handed(uid, name)
	return ok && json.Unmarshal(text, into) == nil
}

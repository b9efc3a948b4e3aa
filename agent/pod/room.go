package pod

import (
	"context"
	"time"

	"github.com/berth-node/berth/internal/disk"
)

// withRoom does something again that there was no room for, if more of it can be made ([disk.Again]). A pod's next
// attempt comes after its back-off.
func (n *node) withRoom(ctx context.Context, do func() error) error {
	return disk.Again(ctx, do, func(since time.Time, err error) bool {
		if n.cfg.Images.Room == nil {
			return false
		}
		n.cfg.Log.Warn("there is no room for a part of a pod", append(LogAttrs(ctx), "error", err)...)
		more, roomErr := n.cfg.Images.Room(ctx, since)
		if roomErr != nil {
			n.cfg.Log.Warn("no room is made", append(LogAttrs(ctx), "error", roomErr)...)
		}
		return more
	})
}

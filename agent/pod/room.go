package pod

import (
	"context"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// LacksSpace says that an error is of a full file system or quota. A runtime behind a socket has words only.
func LacksSpace(err error) bool {
	return strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), unix.EDQUOT.Error())
}

// RoomTries is how often something is done that there is no room for, with room made in between: an image takes it
// twice, packed and unpacked. What has no room then may never have: if
// one went on, all images would go for it that nobody uses. A pod's next attempt comes after its back-off.
const RoomTries = 3

// withRoom does something again that there was no room for, if more of it can be made. What do has done when it fails
// is such that it can be called again.
func (n *node) withRoom(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		began := time.Now()
		err := do()
		if err == nil || ctx.Err() != nil || !LacksSpace(err) || n.cfg.Images.Room == nil || try == RoomTries {
			return err
		}
		n.cfg.Log.Warn("there is no room for a part of a pod", append(LogAttrs(ctx), "error", err)...)
		more, roomErr := n.cfg.Images.Room(ctx, began)
		if roomErr != nil {
			n.cfg.Log.Warn("no room is made", append(LogAttrs(ctx), "error", roomErr)...)
		}
		if !more {
			return err
		}
	}
}

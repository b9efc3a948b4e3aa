package local

import (
	"context"
	"fmt"
	"strconv"

	"github.com/berth-node/berth/internal/ownership"
)

// groupOf reads the number of a group; -1: none is asked for.
func groupOf(text string) (int, error) {
	if text == "" {
		return -1, nil
	}
	gid, err := strconv.ParseUint(text, 10, 32)
	if err != nil || gid == 1<<32-1 {
		return 0, fmt.Errorf("%q is not the number of a group", shorten(text))
	}
	return int(gid), nil
}

// giveGroup gives a volume and all that is in it to a group, once.
func giveGroup(ctx context.Context, path, group string) error {
	gid, err := groupOf(group)
	if err != nil || gid < 0 {
		return err
	}
	return ownership.Give(ctx, path, uint32(gid), false, nil)
}

package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/berth-node/berth/internal/patience"
)

const (
	// syncs is how often the disk is asked, and syncBytes what is written each time: together nothing that anybody else
	// notices.
	syncs, syncBytes = 8, 4096
	// syncPatience is how long all of them may take.
	syncPatience = 10 * time.Second
	// slowSync is more than a disk that turns needs, whose own cache is not trusted: two turns and a seek are 25 ms.
	slowSync = 50 * time.Millisecond
)

func diskProbes() []probe {
	return []probe{{
		"disk", false, "Each record is on the disk before what it is about is done: pods start and end slowly, images unpack slowly.", probeDisk,
	}}
}

// probeDisk has a small file written and synced a few times where the node has its data.
func probeDisk(ctx context.Context, e *env) answer {
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	var calls patience.Calls
	took, err := patience.Ask(ctx, &calls, e.dir, 0, func() ([]time.Duration, error) { return syncTimes(ctx, e.dir) })
	if errors.Is(err, patience.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded) {
		return limited("%d times 4 KiB were not on %s after %s", syncs, filesystem(e.dir), syncPatience)
	}
	if err != nil {
		return missing("%v", err)
	}
	return fastEnough(took, filesystem(e.dir))
}

// syncTimes are how long it takes until a page more is on the disk, each time.
func syncTimes(ctx context.Context, dir string) (took []time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".berth-check-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	for range syncs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		began := time.Now()
		if _, err := f.Write(make([]byte, syncBytes)); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

// fastEnough judges by the median: one of them may have waited for somebody else's writes.
func fastEnough(took []time.Duration, on string) answer {
	slices.Sort(took)
	middle, worst := took[len(took)/2], took[len(took)-1]
	found := fmt.Sprintf("%d bytes are on %s after %s (median of %d, at most %s)", syncBytes, on,
		middle.Round(10*time.Microsecond), len(took), worst.Round(10*time.Microsecond))
	if middle > slowSync {
		return limited("%s", found)
	}
	return ok("%s", found)
}

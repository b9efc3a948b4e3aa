package imagegc

import (
	"context"
	"time"
)

// How long removed files may take to be deleted, which runtimes do in the background, and how often their file system is looked at
// meanwhile: nothing tells how full it is.
const (
	freePatience = 10 * time.Second
	freeLook     = 20 * time.Millisecond
)

// Free removes images at once, as one could not be pulled for want of space: as many as the thresholds say of a full file system, and one
// at least. It says whether there may be more room now.
func (c *Collector) Free(ctx context.Context) (bool, error) {
	if c.cfg.High >= 100 {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if err := c.detect(ctx, now); err != nil {
		return false, err
	}
	before, err := c.space(ctx)
	if err != nil {
		return false, err
	}
	need := max(before.capacity*int64(100-c.cfg.Low)/100-before.available, 1)
	c.cfg.Log.Info("images are removed, since another one has no room", "available", before.available, "bytes", need, "inodes", before.inodesFree)
	freed, err := c.remove(ctx, c.removable(now), ReasonSpace, func(freed int64) bool { return freed >= need })
	if freed == 0 {
		return false, err
	}
	c.awaitRoom(ctx, before)
	if told := c.tell(ctx, now); err == nil {
		err = told
	}
	return true, err
}

// awaitRoom waits until the file system has more room than before.
func (c *Collector) awaitRoom(ctx context.Context, before space) {
	ctx, cancel := context.WithTimeout(ctx, freePatience)
	defer cancel()
	look := time.NewTicker(freeLook)
	defer look.Stop()
	for {
		now, err := c.space(ctx)
		if err != nil || now.available > before.available {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

package images

import (
	"context"
	"errors"
	"time"
)

// How long removed files may take to be deleted, which runtimes do in the background, how long after the last that was
// seen of it no more is waited for, and how often their file system is looked at meanwhile: nothing tells how full it
// is.
const (
	freePatience = 10 * time.Second
	freeRest     = time.Second
	freeLook     = 20 * time.Millisecond
)

// Free removes images at once, as one could not be had for want of space: as many as the thresholds say of a full file
// system, and one at least. It says whether there may be more room now than at that moment, which there is too when
// others have had some made since.
func (c *Collector) Free(ctx context.Context, since time.Time) (bool, error) {
	return c.free(ctx, since, func(now time.Time, before space) (int64, error) {
		need := max(before.capacity*int64(100-c.cfg.Low)/100-before.available, 1)
		c.cfg.Log.Info("images are removed, since another one has no room", "available", before.available, "bytes", need, "inodes", before.inodesFree)
		return c.remove(ctx, c.removable(now), ReasonSpace, func(freed int64) bool { return freed >= need })
	})
}

// FreeIfFull is [Collector.Free] for something else that had no room. That may have been for want of something else,
// too, for which the kernel has no other error: images are removed only where their file system is as full as the
// thresholds say.
func (c *Collector) FreeIfFull(ctx context.Context, since time.Time) (bool, error) {
	return c.free(ctx, since, func(now time.Time, before space) (int64, error) { return c.removeForSpace(ctx, now, before) })
}

// Reclaim removes images until so many bytes and inodes are free as are needed, whatever the thresholds say, and says
// how much that was.
func (c *Collector) Reclaim(ctx context.Context, bytes, inodes int64) (freed, freedInodes int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if err := c.detect(ctx, now); err != nil {
		return 0, 0, err
	}
	before, err := c.space(ctx)
	if err != nil {
		return 0, 0, err
	}
	freed, err = c.remove(ctx, c.removable(now), ReasonSpace, func(freed int64) bool {
		if freed >= bytes && inodes > 0 {
			freedInodes = c.inodesSince(ctx, before)
		}
		return freed >= bytes && freedInodes >= inodes
	})
	if freed == 0 {
		return 0, 0, err
	}
	c.awaitRoom(ctx, before, freed)
	if inodes > 0 {
		freedInodes = c.inodesSince(ctx, before)
	}
	c.freed = time.Now()
	return freed, freedInodes, errors.Join(err, c.tell(ctx, now))
}

// inodesSince is how many less images have than before, by the runtime's word; where it has none, by the file system's.
func (c *Collector) inodesSince(ctx context.Context, before space) int64 {
	after, err := c.space(ctx)
	switch {
	case err != nil:
		return 0
	case before.inodesUsed > 0:
		return max(before.inodesUsed-after.inodesUsed, 0)
	}
	return max(after.inodesFree-before.inodesFree, 0)
}

func (c *Collector) free(ctx context.Context, since time.Time, remove func(now time.Time, before space) (int64, error)) (bool, error) {
	if c.cfg.High >= 100 {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freed.After(since) {
		return true, nil
	}
	now := time.Now()
	if err := c.detect(ctx, now); err != nil {
		return false, err
	}
	before, err := c.space(ctx)
	if err != nil {
		return false, err
	}
	freed, err := remove(now, before)
	if freed == 0 {
		return false, err
	}
	c.awaitRoom(ctx, before, freed)
	c.freed = time.Now()
	if told := c.tell(ctx, now); err == nil {
		err = told
	}
	return true, err
}

// awaitRoom waits until the file system has the room that was made, or nearly: others write meanwhile, and the first
// files are gone long before the last.
func (c *Collector) awaitRoom(ctx context.Context, before space, freed int64) {
	ctx, cancel := context.WithTimeout(ctx, freePatience)
	defer cancel()
	look := time.NewTicker(freeLook)
	defer look.Stop()
	last, grown := before.available, time.Now()
	for {
		now, err := c.space(ctx)
		if err != nil || now.available >= before.available+freed/10*9 {
			return
		}
		if now.available > last {
			last, grown = now.available, time.Now()
		}
		if last > before.available && time.Since(grown) >= freeRest {
			return // a runtime may have said more than there was
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

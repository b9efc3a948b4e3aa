package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/internal/disk"
)

// room is whoever can make room for images.
type room struct {
	known chan struct{} // closed when it is known who
	once  *sync.Once
	fn    func(ctx context.Context, since time.Time) (bool, error)
}

func newRoom() room { return room{known: make(chan struct{}), once: new(sync.Once)} }

// tell has fn asked from now on. Only the first call counts.
func (r *room) tell(fn func(ctx context.Context, since time.Time) (bool, error)) {
	r.once.Do(func() {
		r.fn = fn
		close(r.known)
	})
}

// make says whether there may be more room than when something that had none was begun.
func (r *room) make(ctx context.Context, since time.Time, err error, log *slog.Logger) bool {
	if !disk.Full(err) || ctx.Err() != nil {
		return false
	}
	select {
	case <-r.known:
	default:
		return false
	}
	more, roomErr := r.fn(ctx, since)
	if roomErr != nil && ctx.Err() == nil {
		log.Warn("no room is made for an image", "error", roomErr)
	}
	return more
}

// importAgain is how long after a failure for want of room images are imported again: nothing tells that there is room.
const importAgain = 30 * time.Second

// importDir imports the archives in the image directory. It runs beside everything else: pods whose images are here
// start at once, the others' wait in getImage. What the disk had no room for, or could not be written for, is imported
// later.
func (i *imageService) importDir(ctx context.Context) {
	imported := map[string]bool{} // what has to go for others does not come back before the next start
	began := time.Now()
	err := i.store.ImportArchives(ctx, imported)
	close(i.imported)
	known := i.room.known
	told, tries := "", 1
	for ; err != nil && ctx.Err() == nil; err = i.store.ImportArchives(ctx, imported) {
		if tries < disk.Tries && i.room.make(ctx, began, err, i.log) {
			tries++
			began = time.Now()
			continue
		}
		if err.Error() != told {
			i.log.Error("images are not imported", "dir", i.dir, "error", err)
			told = err.Error()
		}
		if !snapshot.OfTheMoment(err) {
			return
		}
		select {
		case <-ctx.Done():
		case <-i.db.Mended():
		case <-known:
			known = nil // it is asked now
		case <-time.After(importAgain):
		}
		began = time.Now()
	}
}

// errRoomMade is told of an archive that came with a request, and cannot be read a second time.
var errRoomMade = errors.New("images that no pod needs were removed: import it again")

// importOnce imports an archive that can be read once.
func (i *imageService) importOnce(ctx context.Context, work func() error) error {
	began := time.Now()
	err := work()
	if err != nil && i.room.make(ctx, began, err, i.log) {
		return fmt.Errorf("%w; %w", err, errRoomMade)
	}
	return err
}

// withRoom does something again that there was no room for, if more of it can be made.
func (i *imageService) withRoom(ctx context.Context, work func() error) error {
	return disk.Again(ctx, work, func(since time.Time, err error) bool { return i.room.make(ctx, since, err, i.log) })
}

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/record"
)

// records are what is known of volumes, snapshots, groups, and of where volumes are mounted. What is done with one of
// them is done under the lock of its ID.
type records struct {
	volumes *record.Table[record.Volume]
	snaps   *record.Table[record.Snapshot]
	groups  *record.Table[record.Group]
	uses    *record.Table[record.Use]
	locks   locks
	step    steps
	log     *slog.Logger
}

func openRecords(dir string, step steps, log *slog.Logger) (*records, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	// What is mounted does not outlive the machine, and so what tells of it need not.
	mounted := filepath.Join(dir, "mounted")
	forget(mounted, boot, log)
	kept, quarantine := filepath.Join(dir, "records"), filepath.Join(dir, "quarantine")
	warn := func(file string, err error) {
		log.Error("a record cannot be read: what it tells of is left as it is, and its name stays taken", "file", file, "error", err)
	}
	r := &records{step: step, log: log}
	if r.volumes, err = record.Open[record.Volume](filepath.Join(kept, "volumes"), quarantine, warn); err != nil {
		return nil, err
	}
	if r.snaps, err = record.Open[record.Snapshot](filepath.Join(kept, "snapshots"), quarantine, warn); err != nil {
		return nil, err
	}
	if r.groups, err = record.Open[record.Group](filepath.Join(kept, "groups"), quarantine, warn); err != nil {
		return nil, err
	}
	r.uses, err = record.Open[record.Use](filepath.Join(mounted, boot, "uses"), "", func(file string, err error) {
		log.Error("it is not written any more where a volume is mounted: the kernel is asked", "file", file, "error", err)
	})
	if err != nil {
		return nil, err
	}
	r.volumes.Hear(step)
	r.snaps.Hear(step)
	r.groups.Hear(step)
	r.uses.Hear(step)
	return r, nil
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("find out when the machine was started: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// forget removes what tells of mounts before the machine was started.
func forget(dir, boot string, log *slog.Logger) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // there are none
	}
	for _, e := range entries {
		if e.Name() != boot {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				log.Warn("records of mounts before the start of the machine stay", "error", err)
			}
		}
	}
}

// volume is a volume that is there, locked until free is called.
func (r *records) volume(ctx context.Context, id string) (v record.Volume, free func(), err error) {
	free, err = r.locks.lock(ctx, id)
	if err != nil {
		return v, nil, err
	}
	v, err = r.volumes.Get(id)
	if err == nil && v.State != record.Ready {
		err = fs.ErrNotExist
	}
	if err != nil {
		free()
		return v, nil, notFound("volume", id, err)
	}
	return v, free, nil
}

// ready is a volume as it is now, without its lock.
func (r *records) ready(id string) (record.Volume, error) {
	v, err := r.volumes.Get(id)
	if err == nil && v.State != record.Ready {
		return v, status.Errorf(codes.NotFound, "no volume has the ID %q", shorten(id))
	}
	if err != nil {
		return v, notFound("volume", id, err)
	}
	return v, nil
}

// called is the volume that an ID is of, which may be that of a pod's inline volume.
func (r *records) called(id string) (record.Volume, error) {
	if !record.IsID(id) {
		id = idOf(inlineKind, id)
	}
	return r.ready(id)
}

// taken is a volume that is to be unmounted, locked until free is called. Where its own record cannot be read, what is
// known of where it is mounted does.
func (r *records) taken(ctx context.Context, id string) (v record.Volume, free func(), err error) {
	v, free, err = r.volume(ctx, id)
	if status.Code(err) != codes.Internal {
		return v, free, err
	}
	if free, lockErr := r.locks.lock(ctx, id); lockErr == nil {
		if u, _ := r.uses.Get(id); u.Type != "" {
			return record.Volume{ID: id, State: record.Ready, Trim: trimNever, Content: record.Content{Type: u.Type, Block: u.Block}}, free, nil
		}
		free()
	}
	return v, nil, err
}

// listed are the volumes that claims can have.
func (r *records) listed() []record.Volume {
	return slices.DeleteFunc(r.volumes.All(), func(v record.Volume) bool { return v.State != record.Ready || v.Inline != "" })
}

// use is where a volume is mounted by its record; nothing where there is none.
func (r *records) use(id string) (record.Use, error) {
	u, err := r.uses.Get(id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return u, status.Errorf(codes.Internal, "find out where the volume is mounted: %v", err)
	}
	u.Volume, u.Targets = id, maps.Clone(u.Targets)
	return u, nil
}

// putUse writes where a volume is mounted; nowhere is no record.
func (r *records) putUse(u record.Use) error {
	if u.Staging == "" && len(u.Targets) == 0 {
		return r.uses.Delete(u.Volume)
	}
	return r.uses.Put(u)
}

// lessUse is putUse for a volume that is mounted at fewer places than before. Where that cannot be written, on a disk
// that is full or failing, it is known as long as this process lives, and the next one finds it out
// ([recovery.settle]): nobody who lets a volume go waits for room.
func (r *records) lessUse(u record.Use) {
	if err := r.putUse(u); err != nil {
		r.log.Warn("it is not written that a volume is mounted at fewer places", "volume", u.Volume, "error", err)
		r.uses.Hold(u)
	}
}

// usedAt is where a volume is used, if that is at path.
func (r *records) usedAt(id, path string) (record.Use, error) {
	u, err := r.use(id)
	if err != nil {
		return u, err
	}
	_, published := u.Targets[path]
	if !published && (u.Staging == "" || u.Staging != path) {
		return u, notFound("volume at "+shorten(filepath.Clean(path)), id, fs.ErrNotExist)
	}
	return u, nil
}

// notFound gives an error of a table the code that the specification wants.
func notFound(what, id string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return status.Errorf(codes.NotFound, "no %s has the ID %q", what, shorten(id))
	}
	return status.Errorf(codes.Internal, "find %s: %v", what, err)
}

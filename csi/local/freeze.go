package local

import (
	"context"
	"errors"
	"log/slog"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/backend"
	"github.com/berth-node/berth/csi/local/record"
)

// freezer has nobody write to a volume while it is copied.
type freezer struct {
	records  *records
	backends *backends
	log      *slog.Logger
}

// still has nobody write to a volume until thaw is called, so that a copy of it is what it was at one moment.
func (f *freezer) still(ctx context.Context, v record.Volume) (thaw func(), err error) {
	u, err := f.records.uses.Get(v.ID)
	used := err == nil && (u.Staging != "" || len(u.Targets) > 0)
	if !used {
		if at, err := f.backends.mountedAt(ctx, v); err != nil || at != "" {
			return nil, errors.Join(failed("find out where the volume is mounted", err), status.Errorf(codes.FailedPrecondition,
				"source volume: it is mounted at %s, and no record says how: unmount it first", at))
		}
	}
	switch {
	case !used || v.Type == typeLVM && !v.Encrypted: // the device mapper freezes what it takes a snapshot of
		return func() {}, nil
	case v.Type == typeDirectory && f.backends.dirs.AtOnce(v.ID):
		return func() {}, nil
	case v.Type == typeDirectory:
		return nil, status.Errorf(codes.FailedPrecondition, "source volume: it is in use, and a directory is copied file by file: "+
			"stop its pods first, or have volumes of the type loop, or the data directory on btrfs")
	case v.Block && v.Type == typeLoop && !f.backends.images.Clones():
		return nil, status.Errorf(codes.FailedPrecondition, "source volume: a block device in use is not copied at one moment: "+
			"stop its pods first, or have the data directory on xfs or btrfs")
	case v.Block:
		return func() {}, f.flush(ctx, v)
	}
	// The ioctl freezes whatever file system its path is on, which is the machine's own where nothing is mounted.
	if here, err := f.backends.isAt(ctx, v, u.Staging); err != nil || !here {
		return func() {}, f.nowhere(ctx, v, u.Staging, err)
	}
	// The record comes first: a file system that stays frozen would stop its pods for ever.
	u.Frozen = true
	if err := f.records.uses.Put(u); err != nil {
		return nil, failed("freeze", err)
	}
	thaw = func() {
		if err := f.thaw(u); err != nil {
			f.log.Error("a file system that was frozen for a snapshot may stay so", "volume", v.ID, "error", err)
		}
	}
	f.records.step.at("freeze")
	if err := onMount(u.Staging, func(fd int) error { return unix.IoctlSetInt(fd, fiFreeze, 0) }); err != nil {
		thaw()
		return nil, failed("freeze file system", err)
	}
	return thaw, nil
}

// nowhere says where a volume is mounted that is not where it was staged: what somebody has unmounted nobody writes to.
func (f *freezer) nowhere(ctx context.Context, v record.Volume, staging string, err error) error {
	at := ""
	if err == nil {
		at, err = f.backends.mountedAt(ctx, v)
	}
	switch {
	case err != nil:
		return failed("find out where the volume is mounted", err)
	case at != "":
		return status.Errorf(codes.FailedPrecondition, "source volume: it is mounted at %s, and not at %s where it was staged: unmount it first", at, staging)
	}
	return nil
}

// The ioctls that freeze and thaw a file system, and give back to the device what it does not use (linux/fs.h).
const (
	fiFreeze = 0xc0045877 // FIFREEZE
	fiThaw   = 0xc0045878 // FITHAW
	fiTrim   = 0xc0185879 // FITRIM
)

// thaw has a file system be written to again. It is no error when it was not frozen.
func (f *freezer) thaw(u record.Use) error {
	f.records.step.at("thaw")
	err := onMount(u.Staging, func(fd int) error { return unix.IoctlSetInt(fd, fiThaw, 0) })
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, errNotMounted) {
		return err
	}
	u.Frozen = false
	f.records.lessUse(u)
	return nil
}

// errNotMounted is of a place where nothing is mounted.
var errNotMounted = errors.New("nothing is mounted there")

// onMount acts on the root of a file system that is mounted at a path, and on no other that the path is on.
func onMount(path string, act func(fd int) error) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, 0, &st); err != nil {
		return err
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return errNotMounted
	}
	return act(fd)
}

// flush has what was written to a block device be in what the volume is stored in. The kernel has a cache of the
// encrypted device, and one of the device within.
func (f *freezer) flush(ctx context.Context, v record.Volume) error {
	device, err := f.backends.deviceOf(ctx, v)
	if err == nil && device != "" {
		err = backend.Flush(device)
	}
	if err == nil && v.Encrypted {
		if device, err = f.backends.devices(v.Type).Device(ctx, v.ID); err == nil && device != "" {
			err = backend.Flush(device)
		}
	}
	return failed("flush volume", err)
}

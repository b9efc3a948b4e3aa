package local

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/mount"
)

// stager mounts volumes where all their users take them from.
type stager struct {
	records  *records
	backends *backends
	freezer  *freezer
	most     int64 // how many volumes the node takes at once; 0: as many as are asked for
	log      *slog.Logger
}

// staging is how a volume is to be staged.
type staging struct {
	path    string
	how     record.Mount
	secrets map[string]string
}

// stage mounts a volume where all its users take it from. Its lock is held.
func (st *stager) stage(ctx context.Context, v record.Volume, s staging) error {
	u, err := st.records.use(v.ID)
	if err != nil {
		return err
	}
	switch {
	case u.Staging != "" && u.Staging != s.path:
		return status.Errorf(codes.FailedPrecondition, "staging_target_path: the volume is staged at %s", u.Staging)
	case u.Staging != "" && (!slices.Equal(u.Staged.Flags, s.how.Flags) || u.Staged.Group != s.how.Group):
		if staged, err := st.isStaged(ctx, v, s.path); err != nil || staged {
			return errors.Join(err, status.Errorf(codes.AlreadyExists, "volume_capability: the volume is staged with another one"))
		}
	}
	if err := st.free(ctx, v, s.path); err != nil {
		return err
	}
	if u.Staging == "" {
		if err := st.room(); err != nil {
			return err
		}
	}
	had := u
	u.Staging, u.Staged, u.Type, u.Block = s.path, s.how, v.Type, v.Block
	if err := st.records.uses.Put(u); err != nil {
		return failed("stage volume", err)
	}
	err = st.bring(ctx, &v, s)
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer cancel()
	if had.Staging == "" {
		if undone := st.takeDown(undo, v, u); undone == nil {
			st.records.lessUse(had)
		}
	}
	return failed("stage volume", err)
}

// room says whether the node takes one volume more.
func (st *stager) room() error {
	if st.most > 0 && int64(len(st.records.uses.All())) >= st.most {
		return status.Errorf(codes.ResourceExhausted, "the node has %d volumes, and takes no more", st.most)
	}
	return nil
}

// isStaged says whether a volume is where it is to be staged.
func (st *stager) isStaged(ctx context.Context, v record.Volume, path string) (bool, error) {
	if v.Type == typeDirectory {
		return true, nil
	}
	if v.Block {
		device, err := st.backends.deviceOf(ctx, v)
		return device != "", err
	}
	return mount.Is(path)
}

// free says what is where a volume is to be staged, and is not the volume: whoever takes it for that hands it to its
// users, or unmounts it. A link leads to where somebody else is.
func (st *stager) free(ctx context.Context, v record.Volume, path string) error {
	var file unix.Stat_t
	err := unix.Lstat(path, &file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return failed("look at the staging path", err)
	case file.Mode&unix.S_IFMT == unix.S_IFLNK:
		return status.Errorf(codes.FailedPrecondition, "staging_target_path: %s is a link", path)
	case v.Block: // nothing is mounted there
		return nil
	}
	mounted, err := mount.Is(path)
	if err == nil && mounted {
		var ours bool
		if ours, err = st.backends.isOf(ctx, v, path); err == nil && !ours {
			err = status.Errorf(codes.FailedPrecondition, "staging_target_path: something else is mounted at %s", path)
		}
	}
	return failed("look at the staging path", err)
}

// unstage takes a volume away from where it was staged. Its lock is held.
func (st *stager) unstage(ctx context.Context, v record.Volume, path string) error {
	u, err := st.records.use(v.ID)
	if err != nil {
		return err
	}
	if u.Staging == "" {
		if here, err := st.found(ctx, v, path); err != nil || !here {
			return err
		}
		u.Staging = path
	}
	if u.Staging != path {
		return nil
	}
	for target := range u.Targets {
		if mounted, err := mount.Is(target); err != nil || mounted {
			return status.Errorf(codes.FailedPrecondition, "volume_id: the volume is published at %s", target)
		}
	}
	if err := st.takeDown(ctx, v, u); err != nil {
		return failed("unstage volume", err)
	}
	u.Staging, u.Staged, u.Targets = "", record.Mount{}, nil
	st.records.lessUse(u)
	return nil
}

// found says whether a volume is staged at a path by the kernel, for where no record says so any more.
func (st *stager) found(ctx context.Context, v record.Volume, path string) (bool, error) {
	if v.Block {
		device, err := st.backends.deviceOf(ctx, v)
		if err != nil || device == "" {
			return false, err
		}
		at, err := st.backends.mountedAt(ctx, v)
		return at == "", err
	}
	return st.backends.isAt(ctx, v, path)
}

// bring has a volume be at its staging path.
func (st *stager) bring(ctx context.Context, v *record.Volume, s staging) error {
	if v.Type == typeDirectory {
		return st.bringDirectory(ctx, v, s)
	}
	if mounted, err := mount.Is(s.path); !v.Block && (err != nil || mounted) {
		if err == nil {
			err = st.finish(ctx, v, s)
		}
		return err
	}
	st.records.step.at("grow storage")
	if err := st.backends.growStorage(ctx, *v); err != nil { // after a crash it may be smaller than its record says
		return err
	}
	st.records.step.at("attach")
	device, release, err := st.backends.devices(v.Type).Attach(ctx, v.ID, v.Block)
	if err != nil {
		return err
	}
	defer release()
	if v.Encrypted {
		if device, err = st.openLocked(ctx, v, device, s.secrets); err != nil {
			return err
		}
	}
	if v.Block {
		return nil
	}
	if err := st.mountDevice(ctx, v, device, s); err != nil {
		return err
	}
	st.records.step.at("give group")
	return giveGroup(ctx, s.path, s.how.Group)
}

// finish does what follows once a device is mounted, of which a crash may have left some.
func (st *stager) finish(ctx context.Context, v *record.Volume, s staging) error {
	if v.FSBytes < v.Capacity && !slices.Contains(s.how.Flags, "ro") {
		if err := st.growMounted(ctx, v, record.Use{Staging: s.path}, s.secrets); err != nil {
			return err
		}
	}
	st.records.step.at("give group")
	return giveGroup(ctx, s.path, s.how.Group)
}

// bringDirectory mounts nothing: users are given the directory itself. Each mount of the host is one more that is
// copied for every container that starts on it.
func (st *stager) bringDirectory(ctx context.Context, v *record.Volume, s staging) error {
	if err := st.backends.dirs.Missing(ctx, v.ID, 0); err != nil {
		return err
	}
	st.records.step.at("give group")
	return giveGroup(ctx, st.backends.dirs.Path(v.ID), s.how.Group)
}

// mountDevice mounts the file system of a device, and makes one where none was ever complete.
func (st *stager) mountDevice(ctx context.Context, v *record.Volume, device string, s staging) error {
	st.records.step.at("format or check")
	if !v.Formatted {
		if err := st.format(ctx, v, device); err != nil {
			return err
		}
	} else if err := mount.Check(ctx, device, v.FSType); err != nil {
		return err
	}
	if err := st.untwin(ctx, v, device); err != nil {
		return err
	}
	options := slices.Clone(s.how.Flags)
	if v.Trim == trimMount && !slices.Contains(options, "discard") {
		options = append(options, "discard")
	}
	if v.FSType == "xfs" { // a copy has the UUID of what it was copied from
		options = append(options, "nouuid")
	}
	if err := os.Mkdir(s.path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	st.records.step.at("mount device")
	if err := mount.Device(ctx, s.path, mount.FileSystem{Device: device, Type: v.FSType, Options: options}); err != nil {
		return err
	}
	if v.FSBytes < v.Capacity && !slices.Contains(options, "ro") {
		return st.growFS(ctx, v, device, s.path)
	}
	return nil
}

// takeDown undoes what bring does, as far as it was done.
func (st *stager) takeDown(ctx context.Context, v record.Volume, u record.Use) error {
	if u.Frozen {
		if err := st.freezer.thaw(u); err != nil {
			return err
		}
	}
	if v.Trim == trimUnstage && v.Type != typeDirectory && !v.Block {
		st.trim(v.ID, u.Staging)
	}
	st.records.step.at("unmount")
	if !v.Block {
		if err := mount.Unmount(u.Staging); err != nil {
			return err
		}
	}
	if v.Type == typeDirectory {
		return nil
	}
	st.records.step.at("close encrypted device")
	if err := st.backends.vault.close(ctx, v.ID); err != nil {
		return err
	}
	st.records.step.at("detach")
	return st.backends.devices(v.Type).Detach(ctx, v.ID)
}

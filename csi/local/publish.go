package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/mount"
)

// publisher mounts staged volumes for their users.
type publisher struct {
	records  *records
	backends *backends
	dir      string // the data directory, in which nothing is mounted
}

// outside refuses mount points in the data directory.
func (p *publisher) outside(field, path string) error {
	if path == p.dir || strings.HasPrefix(path, p.dir+"/") || strings.HasPrefix(p.dir, path+"/") {
		return invalid(field, "%s is the driver's own", shorten(path))
	}
	return nil
}

// readsOnly says whether a request wants a volume that is not written to.
func readsOnly(r *csi.NodePublishVolumeRequest) bool {
	return r.GetReadonly() || r.GetVolumeCapability().GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY ||
		slices.Contains(r.GetVolumeCapability().GetMount().GetMountFlags(), "ro")
}

// publish mounts a staged volume for one of its users. Its lock is held.
func (p *publisher) publish(ctx context.Context, v record.Volume, r *csi.NodePublishVolumeRequest) error {
	u, err := p.records.use(v.ID)
	if err != nil {
		return err
	}
	target := r.GetTargetPath()
	want := record.Target{
		ReadOnly: readsOnly(r), Mode: int32(r.GetVolumeCapability().GetAccessMode().GetMode()), Flags: r.GetVolumeCapability().GetMount().GetMountFlags(),
	}
	if u.Staging == "" || r.GetStagingTargetPath() != "" && r.GetStagingTargetPath() != u.Staging {
		return status.Errorf(codes.FailedPrecondition, "staging_target_path: the volume is not staged at %q", shorten(r.GetStagingTargetPath()))
	}
	mounted, err := mount.Is(target)
	if err != nil {
		return failed("publish volume", err)
	}
	if has, there := u.Targets[target]; there && mounted {
		if has.ReadOnly != want.ReadOnly || has.Mode != want.Mode || !slices.Equal(has.Flags, want.Flags) {
			return status.Errorf(codes.AlreadyExists, "target_path: the volume is published at %s in another way", target)
		}
		return nil
	} else if mounted {
		return status.Errorf(codes.FailedPrecondition, "target_path: something else is mounted at %s", target)
	}
	if err := alone(u, target, want); err != nil {
		return err
	}
	if u.Targets == nil {
		u.Targets = map[string]record.Target{}
	}
	u.Targets[target] = want
	if err := p.records.uses.Put(u); err != nil {
		return failed("publish volume", err)
	}
	if err := p.bind(ctx, v, u, target, want); err != nil {
		if p.removeTarget(target) == nil {
			delete(u.Targets, target)
			p.records.lessUse(u)
		}
		return failed("publish volume", err)
	}
	return nil
}

// alone says why a volume that has users cannot have one more (CSI, "NodePublishVolume", the table for
// SINGLE_NODE_MULTI_WRITER).
func alone(u record.Use, target string, want record.Target) error {
	const many = int32(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER)
	for other, has := range u.Targets {
		if other == target || has.Mode == many && want.Mode == many {
			continue
		}
		if mounted, err := mount.Is(other); err == nil && !mounted {
			continue
		}
		return status.Errorf(codes.FailedPrecondition, "volume_capability: the volume is published at %s, and its access mode allows for one place", other)
	}
	return nil
}

// bind has a volume be at target, too.
func (p *publisher) bind(ctx context.Context, v record.Volume, u record.Use, target string, want record.Target) error {
	p.records.step.at("make target")
	source, options := u.Staging, []string(nil)
	if v.Block {
		device, err := p.backends.deviceOf(ctx, v)
		if err != nil {
			return err
		}
		if device == "" {
			return status.Errorf(codes.FailedPrecondition, "staging_target_path: the volume has no device: it is to be staged again")
		}
		source = device
		f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		f.Close()
	} else {
		if v.Type == typeDirectory {
			source = p.backends.dirs.Path(v.ID)
			options = slices.DeleteFunc(slices.Clone(u.Staged.Flags), func(o string) bool { return o == "rw" })
		} else if mounted, err := mount.Is(source); err != nil || !mounted {
			return errors.Join(err, status.Errorf(codes.FailedPrecondition, "staging_target_path: nothing is mounted at %s", source))
		}
		if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		for _, flag := range want.Flags { // what is of the whole file system was said when it was staged
			if mount.NotForBind([]string{flag}) == "" {
				options = append(options, flag)
			}
		}
	}
	if want.ReadOnly {
		options = append(slices.DeleteFunc(options, func(o string) bool { return o == "rw" }), "ro")
	}
	p.records.step.at("mount target")
	return mount.Bind(source, target, options)
}

// removeTarget removes a mount point with what is mounted there, and nothing that is in it.
func (p *publisher) removeTarget(target string) error {
	p.records.step.at("unmount target")
	if err := mount.Unmount(target); err != nil {
		return err
	}
	p.records.step.at("remove target")
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// unpublish takes a volume away from one of its users. Its lock is held.
func (p *publisher) unpublish(ctx context.Context, v record.Volume, target string) error {
	u, err := p.records.use(v.ID)
	if err != nil {
		return err
	}
	if _, there := u.Targets[target]; !there {
		// Without a record, which may be lost, it is looked whose it is.
		if mounted, err := mount.Is(target); err != nil || !mounted {
			return err
		}
		if ours, err := p.backends.isOf(ctx, v, target); err != nil || !ours {
			return errors.Join(err, status.Errorf(codes.FailedPrecondition, "target_path: what is mounted at %s is not the volume", target))
		}
	}
	if err := p.removeTarget(target); err != nil {
		return failed("unpublish volume", err)
	}
	delete(u.Targets, target)
	p.records.lessUse(u)
	return nil
}

// isFree says whether nothing is at a path but an empty mount point, which it removes. Of a volume that is gone,
// nothing is left to be done then.
func isFree(path string) bool {
	mounted, err := mount.Is(path)
	if err != nil || mounted {
		return false
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		_ = os.Remove(path) // it stays when it is not empty, and is whose it is
	}
	return true
}

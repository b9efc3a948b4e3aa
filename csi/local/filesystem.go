package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/command"
	"github.com/berth-node/berth/internal/mount"
)

// format makes a file system. A volume is formatted only once that is complete and on the disk: until then nobody has
// had it.
func (st *stager) format(ctx context.Context, v *record.Volume, device string) error {
	// What is not there need not be discarded, and is zeros.
	var options []string
	switch v.FSType {
	case "ext4":
		options = []string{"-q", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"}
	case "xfs":
		options = []string{"-q", "-f", "-K"}
	case "btrfs":
		options = []string{"-q", "-f", "-K"}
	}
	if err := mount.Format(ctx, device, v.FSType, options...); err != nil {
		return err
	}
	st.records.step.at("sync new file system")
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync new file system: %w", err)
	}
	v.Formatted, v.FSBytes, v.Twin = true, v.Capacity, false
	return st.records.volumes.Put(*v)
}

// growFS has a mounted file system take all of its device.
func (st *stager) growFS(ctx context.Context, v *record.Volume, device, path string) error {
	st.records.step.at("grow file system")
	if err := mount.Grow(ctx, device, path, v.FSType); err != nil {
		return err
	}
	v.FSBytes = v.Capacity
	return st.records.volumes.Put(*v)
}

// growMounted has what is on a volume that is staged take all of it.
func (st *stager) growMounted(ctx context.Context, v *record.Volume, u record.Use, secrets map[string]string) error {
	st.records.step.at("grow storage")
	if err := st.backends.growStorage(ctx, *v); err != nil || v.Type == typeDirectory {
		return err
	}
	if !v.Block && v.FSBytes >= v.Capacity {
		return nil
	}
	if !v.Block { // the programs that make a file system larger take any path that is on one
		here, err := st.backends.isAt(ctx, *v, u.Staging)
		if err != nil {
			return err
		}
		if !here {
			return status.Errorf(codes.FailedPrecondition, "volume_path: the volume is not at %s any more: it is to be staged again", u.Staging)
		}
	}
	if v.Encrypted {
		st.records.step.at("grow encrypted device")
		if err := st.backends.vault.grow(ctx, v.ID, secrets); err != nil {
			return err
		}
	}
	if v.Block {
		return nil
	}
	device, err := st.backends.deviceOf(ctx, *v)
	if err == nil && device == "" {
		err = errors.New("it has no device")
	}
	if err != nil {
		return err
	}
	return st.growFS(ctx, v, device, u.Staging)
}

// trim gives back to the disk what a file system does not use. That it cannot is no reason to keep it mounted.
func (st *stager) trim(id, path string) {
	if mounted, err := mount.Is(path); err != nil || !mounted {
		return
	}
	all := struct{ start, length, least uint64 }{length: 1<<64 - 1}
	err := onMount(path, func(fd int) error {
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fiTrim, uintptr(unsafe.Pointer(&all))); e != 0 {
			return e
		}
		return nil
	})
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EROFS) {
		st.log.Warn("what a file system does not use stays taken on the disk", "volume", id, "error", err)
	}
}

// untwin gives a file system of btrfs an identity of its own when it is a copy: the kernel would take two with one UUID
// for two parts of one.
func (st *stager) untwin(ctx context.Context, v *record.Volume, device string) error {
	if !v.Twin {
		return nil
	}
	st.records.step.at("tell twins apart")
	if v.FSType == "btrfs" {
		// Of a crash in the middle the program says itself that it goes on from there.
		if err := command.Run(ctx, "btrfstune", "-f", "-m", device); err != nil {
			return err
		}
	}
	v.Twin = false
	return st.records.volumes.Put(*v)
}

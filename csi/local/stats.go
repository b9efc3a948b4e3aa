package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/filetree"
	"github.com/berth-node/berth/internal/mount"
)

// countTime bounds how long the files of a directory are counted that the file system does not count.
const countTime = 10 * time.Second

func (n node) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if r.GetVolumePath() == "" {
		return nil, invalid("volume_path", "must be given")
	}
	v, err := n.d.records.called(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if _, err := n.d.records.usedAt(v.ID, r.GetVolumePath()); err != nil {
		return nil, err
	}
	usage, err := n.d.meter.usage(ctx, v, r.GetVolumePath())
	if err != nil {
		return nil, failed("measure volume", err)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: usage}, nil
}

// meter finds out what volumes have and how they are.
type meter struct {
	records  *records
	backends *backends
}

// usage is what a volume has and what of it is used.
func (m *meter) usage(ctx context.Context, v record.Volume, path string) ([]*csi.VolumeUsage, error) {
	if v.Block {
		size, err := m.backends.blockSize(ctx, v)
		return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size}}, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, err
	}
	bytes := &csi.VolumeUsage{
		Unit: csi.VolumeUsage_BYTES, Total: int64(st.Blocks) * st.Bsize, Available: int64(st.Bavail) * st.Bsize, Used: int64(st.Blocks-st.Bfree) * st.Bsize,
	}
	inodes := &csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree), Used: int64(st.Files - st.Ffree)}
	if v.Type == typeDirectory {
		if err := m.directoryUsage(ctx, v, bytes, inodes); err != nil {
			return nil, err
		}
	}
	return []*csi.VolumeUsage{bytes, inodes}, nil
}

// directoryUsage says of a directory what it has, and not what the disk has that it is on.
func (m *meter) directoryUsage(ctx context.Context, v record.Volume, bytes, inodes *csi.VolumeUsage) error {
	taken, known := m.backends.dirs.Taken(ctx, v.ID)[v.ID]
	if !known {
		ctx, cancel := context.WithTimeout(ctx, countTime)
		defer cancel()
		u, err := filetree.Count(ctx, m.backends.dirs.Path(v.ID))
		if err != nil {
			return err
		}
		taken, inodes.Used = int64(u.Bytes), int64(u.Inodes)
	}
	bytes.Available = max(0, min(bytes.Available, v.Capacity-taken))
	bytes.Total, bytes.Used = v.Capacity, taken
	return nil
}

func (n node) NodeGetVolumeHealth(ctx context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	v, err := n.d.records.called(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: n.d.meter.health(ctx, v)}, nil
}

func (n node) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	out := &csi.NodeGetStorageHealthResponse{}
	kinds := []string{typeDirectory}
	if n.d.backends.lvm != nil {
		kinds = append(kinds, typeLVM)
	}
	for _, kind := range kinds {
		if _, err := n.d.backends.storage(kind).Free(ctx); err != nil {
			out.BackendHealth = append(out.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
				Status: csi.StorageHealthErrorType_STORAGE_UNREACHABLE, Reason: "StorageNotThere", Message: err.Error(),
			})
		}
	}
	return out, nil
}

// health is what is wrong with a volume.
func (m *meter) health(ctx context.Context, v record.Volume) *csi.VolumeHealth {
	h := &csi.VolumeHealth{VolumeId: v.ID}
	if v.Inline != "" {
		h.VolumeId = v.Inline
	}
	add := func(kind csi.VolumeHealthErrorType, reason, message string) {
		h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: kind, Reason: reason, Message: message})
	}
	if err := m.backends.storage(v.Type).Missing(ctx, v.ID, deviceBytes(v.Content)); err != nil {
		add(csi.VolumeHealthErrorType_DATA_LOSS, "StorageMissing", err.Error())
	}
	u, err := m.records.use(v.ID)
	if err != nil || u.Staging == "" || v.Block {
		return h
	}
	var st unix.Statfs_t
	at, mounted := u.Staging, true
	if v.Type == typeDirectory {
		at = m.backends.dirs.Path(v.ID)
	} else {
		mounted, err = mount.Is(at)
	}
	if err == nil && mounted {
		err = unix.Statfs(at, &st)
	}
	switch {
	case err != nil:
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "NotReadable", err.Error())
	case !mounted:
		add(csi.VolumeHealthErrorType_INACCESSIBLE, "NotMounted", "it is staged at "+u.Staging+", and nothing is mounted there")
	case v.Type != typeDirectory && st.Flags&unix.ST_RDONLY != 0 && !slices.Contains(u.Staged.Flags, "ro"):
		add(csi.VolumeHealthErrorType_DEGRADED, "ReadOnly", "the kernel has made the file system read-only, as it does after errors")
	case v.FSType == "ext4":
		if n := ext4Errors(ctx, m.backends, v); n != "" && n != "0" {
			add(csi.VolumeHealthErrorType_DEGRADED, "FileSystemErrors", "the kernel has found "+n+" errors in the file system")
		}
	case v.Type == typeDirectory && !v.Limited:
		m.overfull(ctx, v, add)
	}
	return h
}

// overfull says of a directory that nothing limits whether it has more than it was given.
func (m *meter) overfull(ctx context.Context, v record.Volume, add func(kind csi.VolumeHealthErrorType, reason, message string)) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	if u, err := filetree.Count(ctx, m.backends.dirs.Path(v.ID)); err == nil && int64(u.Bytes) > v.Capacity {
		add(csi.VolumeHealthErrorType_DEGRADED, "OverCapacity", fmt.Sprintf("it has %d bytes, and was given %d: the file system does not limit it", u.Bytes, v.Capacity))
	}
}

// ext4Errors is how many errors the kernel has found in a file system.
func ext4Errors(ctx context.Context, b *backends, v record.Volume) string {
	device, err := b.deviceOf(ctx, v)
	if err != nil || device == "" {
		return ""
	}
	if device, err = filepath.EvalSymlinks(device); err != nil {
		return ""
	}
	data, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "errors_count"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

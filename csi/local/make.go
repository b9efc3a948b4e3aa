package local

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/backend"
	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/disk"
)

// maker makes volumes and removes them.
type maker struct {
	records  *records
	backends *backends
	space    *space
	freezer  *freezer
	log      *slog.Logger
}

// origin is what a volume is made from.
type origin struct {
	source *csi.VolumeContentSource
	typed  bool // the type was asked for, and is not the default
}

// create makes a volume, or finds the one that was made by the same name.
func (m *maker) create(ctx context.Context, v record.Volume, sizes sizeRange, from origin) (record.Volume, error) {
	free, err := m.records.locks.lock(ctx, v.ID)
	if err != nil {
		return v, err
	}
	defer free()
	id, err := sourceID(from.source)
	if err != nil {
		return v, err
	}
	v.Source = id
	had, err := m.records.volumes.Get(v.ID)
	switch {
	case err == nil && had.State == record.Ready:
		return had, same(had, v, sizes)
	case err == nil: // a try that failed, and could not be undone
		if err := m.removeVolume(ctx, v.ID); err != nil {
			return v, status.Errorf(codes.Internal, "remove what is left of an earlier try: %v", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return v, status.Errorf(codes.Internal, "find volume: %v", err)
	}
	least := leastOf(v.FSType)
	if v.Source != "" {
		unlock, size, err := m.inherit(ctx, &v, from.typed)
		if err != nil {
			return v, err
		}
		defer unlock()
		least = max(least, size)
	}
	if v.Capacity, err = sizes.choose(least, defaultSize); err != nil {
		return v, err
	}
	if err := m.space.reserve(ctx, v.Type, "", deviceBytes(v.Content), func() error { return m.records.volumes.Put(v) }); err != nil {
		return v, err
	}
	if err := m.fill(ctx, &v); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
		defer cancel()
		if undone := m.removeVolume(undo, v.ID); undone != nil {
			m.log.Error("what was made of a volume that failed stays for now", "volume", v.ID, "error", undone)
		}
		return v, failed("make volume", err)
	}
	return v, nil
}

// fill makes what a volume is stored in, and has it be a volume.
func (m *maker) fill(ctx context.Context, v *record.Volume) error {
	m.records.step.at("make storage")
	if err := m.backends.makeStorage(ctx, v); err != nil {
		return err
	}
	if v.Type == typeDirectory {
		m.records.step.at("limit directory")
		err := m.backends.dirs.Limit(v.ID, v.Capacity)
		if errors.Is(err, backend.ErrNotLimited) {
			if v.Quota == quotaRequired {
				return status.Errorf(codes.FailedPrecondition, "parameters: quota required: %v", err)
			}
			err = nil
		} else {
			v.Limited = err == nil
		}
		if err != nil {
			return err
		}
	}
	v.State = record.Ready
	return m.records.volumes.Put(*v)
}

// inherit has a volume be of the content of its source, which is locked until unlock, and large enough for it.
func (m *maker) inherit(ctx context.Context, v *record.Volume, typed bool) (unlock func(), size int64, err error) {
	if v.Source == v.ID {
		return nil, 0, status.Errorf(codes.NotFound, "volume_content_source: a volume is not made from itself")
	}
	free, err := m.records.locks.lock(ctx, v.Source)
	if err != nil {
		return nil, 0, err
	}
	content, thaw, err := m.sourceContent(ctx, v.Source)
	if err == nil {
		switch {
		case typed && content.Type != v.Type:
			err = invalid("parameters", "type: the source is of the type %s", content.Type)
		case content.Block != v.Block:
			err = invalid("volume_capabilities", "the source has another access type")
		case content.Encrypted != v.Encrypted:
			err = invalid("parameters", "encryption: that of the source is another")
		case v.FSType != "" && content.FSType != "" && v.FSType != content.FSType && content.Formatted:
			err = invalid("volume_capabilities", "fs_type: the source has %s", content.FSType)
		}
		if err != nil {
			thaw()
		}
	}
	if err != nil {
		free()
		return nil, 0, err
	}
	v.Content = content
	v.Twin = content.Formatted && !content.Block
	return func() { thaw(); free() }, content.Capacity, nil
}

// sourceContent is what a snapshot or a volume has, which is still until thaw is called.
func (m *maker) sourceContent(ctx context.Context, id string) (c record.Content, thaw func(), err error) {
	s, err := m.records.snaps.Get(id)
	if err == nil && s.State == record.Ready {
		return s.Content, func() {}, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, nil, notFound("snapshot", id, err)
	}
	v, err := m.records.volumes.Get(id)
	if err == nil && v.State != record.Ready {
		err = fs.ErrNotExist
	}
	if err != nil {
		return c, nil, notFound("source", id, err)
	}
	thaw, err = m.freezer.still(ctx, v)
	return v.Content, thaw, err
}

// removeVolume removes a volume and all that is in it; it is no error when there is none. Its lock is held.
func (m *maker) removeVolume(ctx context.Context, id string) error {
	v, err := m.records.volumes.Get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if v.State != record.Removing {
		if err := m.records.volumes.Leave(id); err != nil {
			return err
		}
	}
	if err := m.backends.vault.close(ctx, id); err != nil {
		return err
	}
	m.records.step.at("remove storage")
	if err := m.backends.storage(v.Type).Remove(ctx, id); err != nil {
		return err
	}
	return m.records.volumes.Delete(id)
}

// expand promises a volume more. Volumes do not shrink.
func (m *maker) expand(ctx context.Context, v *record.Volume, sizes sizeRange) error {
	size, err := sizes.choose(v.Capacity, v.Capacity)
	if err != nil {
		return err
	}
	if size == v.Capacity {
		return nil
	}
	larger := *v
	larger.Capacity = size
	err = m.space.reserve(ctx, v.Type, v.ID, deviceBytes(larger.Content), func() error { return m.records.volumes.Put(larger) })
	if err == nil {
		*v = larger
	}
	return err
}

// same says why a volume that is there is not what is asked for by its name.
func same(had, want record.Volume, sizes sizeRange) error {
	not := func(what string) error {
		return status.Errorf(codes.AlreadyExists, "name: a volume %q is there with %s", shorten(had.Name), what)
	}
	switch {
	case !sizes.has(had.Capacity):
		return not("another capacity")
	case had.Block != want.Block:
		return not("another access type")
	case had.Source != want.Source:
		return not("another content source")
	case want.FSType != "" && had.FSType != want.FSType && had.Type != typeDirectory && want.Type != typeDirectory:
		return not("another file system")
	case !maps.Equal(had.Parameters, want.Parameters):
		return not("other parameters")
	}
	return nil
}

func sourceID(s *csi.VolumeContentSource) (string, error) {
	switch {
	case s == nil:
		return "", nil
	case s.GetSnapshot() != nil:
		return s.GetSnapshot().GetSnapshotId(), named("volume_content_source.snapshot.snapshot_id", s.GetSnapshot().GetSnapshotId())
	case s.GetVolume() != nil:
		return s.GetVolume().GetVolumeId(), named("volume_content_source.volume.volume_id", s.GetVolume().GetVolumeId())
	}
	return "", invalid("volume_content_source", "must be a snapshot or a volume")
}

// failed gives an error without a code the one that fits.
func failed(what string, err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Internal
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case disk.Full(err):
		code = codes.ResourceExhausted
	}
	return status.Errorf(code, "%s: %v", what, err)
}

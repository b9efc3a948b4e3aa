package local

import (
	"context"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/record"
)

// space is how much is promised, and how much still can be.
type space struct {
	records    *records
	backends   *backends
	overcommit float64    // see [Config]
	mu         sync.Mutex // between counting what is promised and promising more
}

// luksHeader is what LUKS takes of a device by default, in bytes.
const luksHeader = 16 << 20

// deviceBytes is how large the device below a volume is.
func deviceBytes(c record.Content) int64 {
	if c.Encrypted {
		return c.Capacity + luksHeader
	}
	return c.Capacity
}

// promised is what volumes and snapshots may still come to take beyond what they take, and what they take, in bytes,
// and apart from them what the one takes that is excepted.
func (sp *space) promised(ctx context.Context, ofLVM bool, except string) (more, taken, own int64) {
	volumes, snapshots := sp.records.volumes.All(), sp.records.snaps.All()
	of := map[string][]string{} // by type
	counts := func(id string, c record.Content) bool {
		is := (c.Type == typeLVM) == ofLVM
		if is {
			of[c.Type] = append(of[c.Type], id)
		}
		return is
	}
	volumes = slices.DeleteFunc(volumes, func(v record.Volume) bool { return !counts(v.ID, v.Content) })
	snapshots = slices.DeleteFunc(snapshots, func(s record.Snapshot) bool { return !counts(s.ID, s.Content) })
	takes := map[string]int64{}
	for kind, ids := range of {
		maps.Copy(takes, sp.backends.storage(kind).Taken(ctx, ids...))
	}
	add := func(id string, c record.Content, may int64) {
		has := takes[id]
		// Of blocks that it has in common with others nobody knows how many it will have for itself.
		if c.Shared {
			has = 0
		}
		has = min(has, may)
		if id == except {
			own = has
			return
		}
		more += may - has
		taken += has
	}
	for _, v := range volumes {
		add(v.ID, v.Content, deviceBytes(v.Content))
	}
	for _, s := range snapshots {
		has, known := takes[s.ID]
		switch {
		case s.Shared:
			add(s.ID, s.Content, deviceBytes(s.Content))
		case s.State == record.Making:
			add(s.ID, s.Content, copied(s, takes))
		case known: // one that shares nothing has what it will ever have
			add(s.ID, s.Content, has)
		}
	}
	return more, taken, own
}

// copied is how many bytes a snapshot comes to take that is being copied: what its volume takes, or as much as that
// may.
func copied(s record.Snapshot, takes map[string]int64) int64 {
	if has, known := takes[s.Volume]; known {
		return has
	}
	return s.Capacity
}

// available is how many bytes can still be promised. With an overcommit of 1 that is what is free, less what is
// promised and not yet taken.
func (sp *space) available(ctx context.Context, kind, except string) (int64, error) {
	free, err := sp.backends.storage(kind).Free(ctx)
	if err != nil {
		return 0, status.Errorf(codes.Internal, "find free space: %v", err)
	}
	more, taken, own := sp.promised(ctx, kind == typeLVM, except)
	return max(0, int64(sp.overcommit*float64(free+taken+own))-taken-more), nil
}

// reserve promises bytes by writing a record; no two do at once. except is the ID of what has been promised something,
// and gets more.
func (sp *space) reserve(ctx context.Context, kind, except string, bytes int64, write func() error) error {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	free, err := sp.available(ctx, kind, except)
	if err != nil {
		return err
	}
	if bytes > free {
		return status.Errorf(codes.ResourceExhausted, "capacity_range: %d bytes are asked for, and %d can still be promised", bytes, free)
	}
	if err := write(); err != nil {
		return status.Errorf(codes.Internal, "%v", err)
	}
	return nil
}

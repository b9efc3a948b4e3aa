package local

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berth-node/berth/csi/local/record"
)

// capacity says how much there is for volumes like s.
func capacity(bytes int64, s shape) *csi.GetCapacityResponse {
	most := bytes
	if s.Encrypted {
		most = max(0, bytes-luksHeader)
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: bytes, MaximumVolumeSize: wrapperspb.Int64(min(most/sizeStep*sizeStep, maxSize)),
		MinimumVolumeSize: wrapperspb.Int64(leastOf(s.FSType)),
	}
}

// page is the part of rows, which are in the order of their IDs, that comes after those before. A token is the last ID
// of the page before, so that it is good for the next one whatever is made or removed between.
func page[T record.Keyed](rows []T, most int32, token string) (part []T, next string, err error) {
	if most < 0 {
		return nil, "", invalid("max_entries", "%d: must not be negative", most)
	}
	if token != "" {
		if !record.IsID(token) {
			// CSI, "ListVolumes Errors": the caller starts over.
			return nil, "", status.Errorf(codes.Aborted, "starting_token: %q is no token of this driver", shorten(token))
		}
		i, found := slices.BinarySearchFunc(rows, token, func(row T, token string) int {
			switch key := row.Key(); {
			case key < token:
				return -1
			case key > token:
				return 1
			}
			return 0
		})
		if found {
			i++
		}
		rows = rows[i:]
	}
	if most > 0 && len(rows) > int(most) {
		rows = rows[:most]
		next = rows[most-1].Key()
	}
	return rows, next, nil
}

// publishedAt is where a volume is used: here, or nowhere.
func (c controller) publishedAt(id string) []string {
	if u, err := c.d.records.uses.Get(id); err == nil && (u.Staging != "" || len(u.Targets) > 0) {
		return []string{c.d.place.node}
	}
	return nil
}

func (c controller) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	part, next, err := page(c.d.records.listed(), r.GetMaxEntries(), r.GetStartingToken())
	if err != nil {
		return nil, err
	}
	out := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range part {
		out.Entries = append(out.Entries, &csi.ListVolumesResponse_Entry{
			Volume: c.d.place.describe(v), Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: c.publishedAt(v.ID)},
		})
	}
	return out, nil
}

func (c controller) ControllerGetVolume(_ context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	v, err := c.d.records.ready(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: c.d.place.describe(v), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: c.publishedAt(v.ID)},
	}, nil
}

func (c controller) ListSnapshots(_ context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	all := slices.DeleteFunc(c.d.records.snaps.All(), func(s record.Snapshot) bool {
		return s.State != record.Ready || r.GetSnapshotId() != "" && s.ID != r.GetSnapshotId() ||
			r.GetSourceVolumeId() != "" && s.Volume != r.GetSourceVolumeId()
	})
	part, next, err := page(all, r.GetMaxEntries(), r.GetStartingToken())
	if err != nil {
		return nil, err
	}
	out := &csi.ListSnapshotsResponse{NextToken: next}
	for _, s := range part {
		out.Entries = append(out.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: c.d.place.describeSnapshot(s)})
	}
	return out, nil
}

func (c controller) GetSnapshot(_ context.Context, r *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if err := named("snapshot_id", r.GetSnapshotId()); err != nil {
		return nil, err
	}
	s, err := c.d.records.snaps.Get(r.GetSnapshotId())
	if err == nil && s.State != record.Ready {
		return nil, status.Errorf(codes.NotFound, "no snapshot has the ID %q", shorten(r.GetSnapshotId()))
	}
	if err != nil {
		return nil, notFound("snapshot", r.GetSnapshotId(), err)
	}
	return &csi.GetSnapshotResponse{Snapshot: c.d.place.describeSnapshot(s)}, nil
}

func (c controller) ControllerListVolumeHealth(ctx context.Context, r *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	part, next, err := page(c.d.records.listed(), r.GetMaxEntries(), r.GetStartingToken())
	if err != nil {
		return nil, err
	}
	out := &csi.ControllerListVolumeHealthResponse{NextToken: next}
	for _, v := range part {
		if h := c.d.meter.health(ctx, v); len(h.GetHealthStatuses()) > 0 {
			out.Entries = append(out.Entries, h)
		}
	}
	return out, nil
}

func (c controller) ControllerGetVolumeHealth(ctx context.Context, r *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	if err := named("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	v, err := c.d.records.ready(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: c.d.meter.health(ctx, v)}, nil
}

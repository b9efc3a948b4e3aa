package local

import (
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-node/berth/csi/local/record"
)

// place is the node that all volumes are on.
type place struct{ node string }

// here says whether the node is among those that a volume may be on.
func (p place) here(r *csi.TopologyRequirement) bool {
	if len(r.GetRequisite()) == 0 {
		return true
	}
	return slices.ContainsFunc(r.GetRequisite(), p.isHere)
}

func (p place) isHere(t *csi.Topology) bool {
	node, given := t.GetSegments()[TopologyKey]
	return !given || node == p.node
}

func (p place) topology() *csi.Topology {
	return &csi.Topology{Segments: map[string]string{TopologyKey: p.node}}
}

// describe is a volume as the specification has it.
func (p place) describe(v record.Volume) *csi.Volume {
	out := &csi.Volume{
		VolumeId: v.ID, CapacityBytes: v.Capacity, AccessibleTopology: []*csi.Topology{p.topology()}, VolumeContext: map[string]string{parameterType: v.Type},
	}
	if v.Type == typeDirectory {
		out.VolumeContext[parameterQuota] = map[bool]string{true: "enforced", false: "none"}[v.Limited]
	}
	switch {
	case v.Source == "":
	case v.Source[:1] == snapshotKind:
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.Source},
		}}
	default:
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.Source},
		}}
	}
	return out
}

func (p place) describeSnapshot(s record.Snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SizeBytes: s.Capacity, SnapshotId: s.ID, SourceVolumeId: s.Volume, CreationTime: timestamppb.New(s.Created.UTC().Truncate(time.Nanosecond)),
		ReadyToUse: s.State == record.Ready, GroupSnapshotId: s.Group, AccessibleTopology: []*csi.Topology{p.topology()},
	}
}

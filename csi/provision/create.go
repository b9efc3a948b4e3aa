package provision

import (
	"context"
	"errors"
	"fmt"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/berth-node/berth/csi"
)

// call calls the driver. wrong is what is the matter with what it has made.
type call func(context.Context) (wrong, err error)

// createVolume is the call that makes a volume, which fills in the record.
func (a acts) createVolume(d *csi.Driver, r *record) (call, error) {
	c := &r.Claim
	if !d.Controller(spec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME) {
		return nil, fmt.Errorf("CSI driver %s makes no volumes here: its controller is not on the socket of its node service", d.Name)
	}
	if err := allowed(c.Class.Topologies, d.Topology, a.m.cfg.Labels); err != nil {
		return nil, err
	}
	secrets, err := a.secrets(r.Secrets.Provisioner)
	if err != nil {
		return nil, err
	}
	request := &spec.CreateVolumeRequest{
		Name: c.name(Volume), Parameters: r.Parameters, Secrets: secrets, VolumeCapabilities: capabilities(c, d),
		CapacityRange: &spec.CapacityRange{RequiredBytes: c.Bytes, LimitBytes: c.Limit},
	}
	if c.Attributes.Class != "" {
		if err := c.Attributes.fit(d); err != nil {
			return nil, err
		}
		request.MutableParameters = c.Attributes.Parameters
	}
	if r.FSType != "" && !c.Block {
		for _, one := range request.VolumeCapabilities {
			one.GetMount().FsType = r.FSType
		}
	}
	if request.VolumeContentSource, err = a.source(d, c); err != nil {
		return nil, err
	}
	if here := accessible(d); here != nil {
		request.AccessibilityRequirements = &spec.TopologyRequirement{Requisite: here, Preferred: here}
	}
	return func(ctx context.Context) (wrong, err error) {
		answer, err := d.Client().Controller().CreateVolume(ctx, request)
		if err != nil {
			return nil, err
		}
		v := answer.GetVolume()
		r.Handle, r.Context, r.Ready = v.GetVolumeId(), v.GetVolumeContext(), true
		r.Bytes, r.Changed = v.GetCapacityBytes(), changed{Now: c.Attributes}
		if r.Bytes == 0 { // it does not say
			r.Bytes = c.Bytes
		}
		if wrong, err = checkVolume(d, request, v); wrong != nil { // of which the record has what it is deleted by
			r.Bytes, r.Context = max(r.Bytes, 0), nil
		}
		return wrong, err
	}, nil
}

// maxContext is how much a driver may have its node service be told of a volume, in bytes: more than the
// specification's 4 KiB, as to nobody's harm, and less than a record has room for.
const maxContext = 64 << 10

// maxHandle is the bound of a volume's ID in a PersistentVolume, in bytes.
const maxHandle = 4 << 10

// checkVolume says what is wrong with what a driver has made. Without an ID it cannot even be deleted: err.
func checkVolume(d *csi.Driver, asked *spec.CreateVolumeRequest, v *spec.Volume) (wrong, err error) {
	need, limit := asked.GetCapacityRange().GetRequiredBytes(), asked.GetCapacityRange().GetLimitBytes()
	switch size := v.GetCapacityBytes(); {
	case v.GetVolumeId() == "" || len(v.GetVolumeId()) > maxHandle:
		return nil, fmt.Errorf("CSI driver %s has made a volume with an ID of %d bytes", d.Name, len(v.GetVolumeId()))
	case size < 0 || size > 0 && size < need:
		return fmt.Errorf("it has %d bytes, and %d were asked for", size, need), nil
	case limit > 0 && size > limit:
		return fmt.Errorf("it has %d bytes, and at most %d were asked for", size, limit), nil
	case asked.GetVolumeContentSource() != nil && v.GetContentSource() == nil:
		return errors.New("it does not say that it has the content that was asked for"), nil
	}
	size := 0
	for k, value := range v.GetVolumeContext() {
		size += len(k) + len(value)
	}
	if size > maxContext {
		return fmt.Errorf("its volume_context has %d bytes, and may have %d", size, maxContext), nil
	}
	if len(v.GetAccessibleTopology()) == 0 {
		return nil, nil
	}
	for _, t := range v.GetAccessibleTopology() {
		here := true
		for k, value := range t.GetSegments() {
			here = here && d.Topology[k] == value
		}
		if here {
			return nil, nil
		}
	}
	return errors.New("it cannot be reached from this node"), nil
}

// source is what a volume is to be made of.
func (a acts) source(d *csi.Driver, c *Claim) (*spec.VolumeContentSource, error) {
	snapshot, volume := c.Source.SnapshotHandle, c.Source.VolumeHandle
	var err error
	if c.Source.Snapshot != "" {
		snapshot, err = a.find(Snapshot, Ref{c.Namespace, c.Source.Snapshot})
	}
	if c.Source.Claim != "" {
		volume, err = a.find(Volume, Ref{c.Namespace, c.Source.Claim})
	}
	if err != nil {
		return nil, err
	}
	c.Source = Source{SnapshotHandle: snapshot, VolumeHandle: volume} // by which it is asked for again
	switch {
	case snapshot != "" && !d.Controller(spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT):
		return nil, fmt.Errorf("CSI driver %s has no snapshots", d.Name)
	case snapshot != "":
		return &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Snapshot{
			Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: snapshot},
		}}, nil
	case volume != "" && !d.Controller(spec.ControllerServiceCapability_RPC_CLONE_VOLUME):
		return nil, fmt.Errorf("CSI driver %s clones no volumes", d.Name)
	case volume != "":
		return &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Volume{
			Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: volume},
		}}, nil
	}
	return nil, nil
}

// capabilities are how a claim wants to use its volume.
func capabilities(c *Claim, d *csi.Driver) []*spec.VolumeCapability {
	modes := c.AccessModes
	if len(modes) == 0 {
		modes = []csi.AccessMode{csi.ReadWriteOnce}
	}
	tells := d.Controller(spec.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	var out []*spec.VolumeCapability
	for _, mode := range modes {
		one := &spec.VolumeCapability{AccessMode: &spec.VolumeCapability_AccessMode{Mode: mode.Spec(tells)}}
		if c.Block {
			one.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
		} else {
			one.AccessType = &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{MountFlags: c.Class.MountOptions}}
		}
		out = append(out, one)
	}
	return out
}

// createSnapshot is the call that makes a snapshot, and says whether it is ready.
func (a acts) createSnapshot(d *csi.Driver, r *record) (call, error) {
	c := &r.Claim
	if !d.Controller(spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT) {
		return nil, fmt.Errorf("CSI driver %s makes no snapshots here", d.Name)
	}
	if c.Source.Claim != "" {
		volume, err := a.find(Volume, Ref{c.Namespace, c.Source.Claim})
		if err != nil {
			return nil, err
		}
		c.Source = Source{VolumeHandle: volume}
	}
	secrets, err := a.secrets(r.Secrets.Provisioner)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (wrong, err error) {
		answer, err := d.Client().Controller().CreateSnapshot(ctx, &spec.CreateSnapshotRequest{
			SourceVolumeId: c.Source.VolumeHandle, Name: c.name(Snapshot), Parameters: r.Parameters, Secrets: secrets,
		})
		if err != nil {
			return nil, err
		}
		s := answer.GetSnapshot()
		if id := s.GetSnapshotId(); id == "" || len(id) > maxHandle {
			return nil, fmt.Errorf("CSI driver %s has made a snapshot with an ID of %d bytes", d.Name, len(id))
		}
		r.Handle, r.Bytes, r.Ready = s.GetSnapshotId(), max(s.GetSizeBytes(), 0), s.GetReadyToUse()
		if t := s.GetCreationTime(); t.IsValid() {
			r.Created = t.AsTime()
		}
		return nil, nil
	}, nil
}

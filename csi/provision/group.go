package provision

import (
	"context"
	"fmt"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/berth-node/berth/csi"
)

// maxGroup bounds how many volumes a group snapshot has.
const maxGroup = 1000

// groups are what is done with group snapshots.
type groups struct{ acts acts }

// create is the call that makes snapshots of several volumes at one moment, and says whether they are ready. Which
// volumes these are is decided once: the call is repeated with the same ones.
func (g groups) create(d *csi.Driver, r *record) (call, error) {
	c := &r.Claim
	if !d.Groups(spec.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT) {
		return nil, fmt.Errorf("CSI driver %s makes no group snapshots here", d.Name)
	}
	if !r.Asked && r.Handle == "" {
		var err error
		if r.Members, err = g.members(c); err != nil {
			return nil, err
		}
	}
	secrets, err := g.acts.secrets(r.Secrets.Provisioner)
	if err != nil {
		return nil, err
	}
	request := &spec.CreateVolumeGroupSnapshotRequest{Name: c.name(Group), Parameters: r.Parameters, Secrets: secrets}
	for _, m := range r.Members {
		request.SourceVolumeIds = append(request.SourceVolumeIds, m.Volume)
	}
	return func(ctx context.Context) (wrong, err error) {
		answer, err := d.Client().GroupController().CreateVolumeGroupSnapshot(ctx, request)
		if err != nil {
			return nil, err
		}
		made := answer.GetGroupSnapshot()
		if id := made.GetGroupSnapshotId(); id == "" || len(id) > maxHandle {
			return nil, fmt.Errorf("CSI driver %s has made a group snapshot with an ID of %d bytes", d.Name, len(id))
		}
		r.Handle, r.Ready = made.GetGroupSnapshotId(), made.GetReadyToUse()
		if t := made.GetCreationTime(); t.IsValid() {
			r.Created = t.AsTime()
		}
		return r.takeMembers(made.GetSnapshots()), nil
	}, nil
}

// members are the volumes of the claims that a group snapshot is to be of.
func (g groups) members(c *Claim) ([]Member, error) {
	if len(c.Members) == 0 || len(c.Members) > maxGroup {
		return nil, fmt.Errorf("its selector has %d claims of namespace %s: from 1 to %d are needed", len(c.Members), c.Namespace, maxGroup)
	}
	var out []Member
	for _, name := range c.Members {
		of := Ref{c.Namespace, name}
		handle, err := g.acts.find(Volume, of)
		if err != nil {
			return nil, err
		}
		s, _ := g.acts.m.Get(Volume, of)
		if driver := s.Claim.Class.Driver; driver != c.Class.Driver {
			return nil, fmt.Errorf("volume %s is of CSI driver %s, and the class of CSI driver %s", of, driver, c.Class.Driver)
		}
		out = append(out, Member{Claim: name, Volume: handle})
	}
	return out, nil
}

// takeMembers takes the snapshots that a driver has made, and says what is wrong with them: then none counts.
func (r *record) takeMembers(all []*spec.Snapshot) (wrong error) {
	r.Members = slices.Clone(r.Members)
	for i := range r.Members {
		r.Members[i].Handle = ""
	}
	defer func() {
		if wrong == nil {
			return
		}
		r.Ready = false
		for i := range r.Members {
			r.Members[i].Handle = ""
		}
	}()
	if len(all) != len(r.Members) {
		return fmt.Errorf("it has %d snapshots of %d volumes", len(all), len(r.Members))
	}
	seen := map[string]bool{}
	for _, s := range all {
		id := s.GetSnapshotId()
		i := slices.IndexFunc(r.Members, func(m Member) bool { return m.Volume == s.GetSourceVolumeId() })
		switch {
		case id == "" || len(id) > maxHandle:
			return fmt.Errorf("one of its snapshots has an ID of %d bytes", len(id))
		case i < 0:
			return fmt.Errorf("its snapshot %s is of volume %s, which was not asked for", csi.Text(id), csi.Text(s.GetSourceVolumeId()))
		case seen[id] || r.Members[i].Handle != "":
			return fmt.Errorf("its snapshot %s, or one of volume %s, is there twice", csi.Text(id), csi.Text(s.GetSourceVolumeId()))
		}
		seen[id] = true
		r.Members[i].Handle, r.Members[i].Bytes = id, max(s.GetSizeBytes(), 0)
		r.Ready = r.Ready && s.GetReadyToUse()
	}
	return nil
}

// deletionOf is the request that deletes a group snapshot with its snapshots.
func deletionOf(r *record, secrets map[string]string) *spec.DeleteVolumeGroupSnapshotRequest {
	out := &spec.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: r.Handle, Secrets: secrets}
	for _, m := range r.Members {
		if m.Handle != "" {
			out.SnapshotIds = append(out.SnapshotIds, m.Handle)
		}
	}
	return out
}

// MemberName is the name by which the snapshot of a claim that a group snapshot has is a source of volumes.
func MemberName(group, claim string) string { return group + "-" + claim }

// find is the snapshot that a group snapshot has by a name.
func (g groups) find(of Ref) (string, error) {
	var ready []string
	err := fmt.Errorf("%s %s: there is none that was made here", Snapshot, of)
	for _, s := range g.acts.m.List() {
		if s.Kind != Group || s.Claim.Namespace != of.Namespace {
			continue
		}
		for _, m := range s.Members {
			switch {
			case MemberName(s.Claim.Name, m.Claim) != of.Name:
			case !s.Ready || s.Missing:
				err = fmt.Errorf("%s %s of group snapshot %s is not ready", Snapshot, of, s.Claim.Ref)
			default:
				ready = append(ready, m.Handle)
			}
		}
	}
	switch len(ready) {
	case 0:
		return "", err
	case 1:
		return ready[0], nil
	}
	return "", fmt.Errorf("%s %s: several group snapshots have one of the name", Snapshot, of)
}

package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/csi/node"
	"github.com/berth-node/berth/csi/provision"
)

// shownVolumes are the volumes of CSI drivers, for the API.
type shownVolumes struct {
	csi       *csiVolumes
	provision *provision.Manager
}

// limited is a number of which 0 is as many as one likes.
func limited(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

// statsFor is how long drivers are asked how their volumes are.
const statsFor = 2 * time.Second

// State implements [api.Volumes].
func (v shownVolumes) State(ctx context.Context) api.VolumeState {
	out := api.VolumeState{Drivers: []api.VolumeDriver{}, Claims: []api.VolumeClaim{}, Mounts: []api.VolumeMount{}}
	for _, d := range v.csi.drivers.List() {
		out.Drivers = append(out.Drivers, api.VolumeDriver{
			Name: d.Name, Endpoint: d.Endpoint, Version: d.Vendor, Connected: d.Connected, NodeID: d.NodeID, Volumes: v.csi.volumes.Count(d.Name),
			MaxVolumes: limited(d.MaxVolumes), Topology: d.Topology, Capabilities: d.Capabilities(),
		})
	}
	for _, r := range v.csi.drivers.Refused() {
		out.Drivers = append(out.Drivers, api.VolumeDriver{Name: r.Name, Endpoint: r.Endpoint, Refused: r.Why})
	}
	for _, s := range v.provision.List() {
		out.Claims = append(out.Claims, claimShown(&s))
	}
	for _, s := range v.csi.volumes.List() {
		out.Mounts = append(out.Mounts, mountShown(&s))
	}
	v.measure(ctx, out.Mounts)
	return out
}

func mountShown(s *node.State) api.VolumeMount {
	m := api.VolumeMount{
		Driver: s.Driver, Name: s.Name, Handle: s.Handle, Mode: string(s.AccessMode), Block: s.Block, Stage: s.StagePath, Staged: s.Staged,
		Attached: s.Attached, Pods: []api.VolumeUse{}, Error: s.Error,
	}
	for _, u := range s.Uses {
		m.Pods = append(m.Pods, api.VolumeUse{
			Pod: u.Pod.Namespace + "/" + u.Pod.Name, UID: u.Pod.UID, Path: u.Path, ReadOnly: u.ReadOnly, Published: u.Published,
		})
	}
	return m
}

// measure asks the drivers side by side, each for one volume after the other. What is not known in time is left out.
func (v shownVolumes) measure(ctx context.Context, mounts []api.VolumeMount) {
	ctx, cancel := context.WithTimeout(ctx, statsFor)
	defer cancel()
	of := map[string][]*api.VolumeMount{}
	for i := range mounts {
		of[mounts[i].Driver] = append(of[mounts[i].Driver], &mounts[i])
	}
	var wait sync.WaitGroup
	for _, list := range of {
		wait.Go(func() {
			for _, m := range list {
				is, err := v.csi.volumes.Stats(ctx, m.Driver, m.Handle, "")
				if err == nil {
					measured(m, &is)
				}
				if ctx.Err() != nil || errors.Is(err, node.ErrNoStats) {
					return
				}
			}
		})
	}
	wait.Wait()
}

func measured(m *api.VolumeMount, is *node.Stats) {
	m.Capacity = max(is.Bytes.Total, 0)
	if is.Bytes.Used >= 0 {
		m.Used = &is.Bytes.Used
	}
	if is.Condition.Known {
		well := !is.Condition.Abnormal
		m.Healthy, m.Health = &well, abnormal(is.Condition)
	}
}

func claimShown(s *provision.State) api.VolumeClaim {
	c := api.VolumeClaim{
		Kind: string(s.Kind), Namespace: s.Claim.Namespace, Claim: s.Claim.Name, Name: s.Name, Class: s.Claim.Class.Name,
		Driver: s.Claim.Class.Driver, Handle: s.Handle, Bytes: s.Bytes, Error: s.Error, Status: "Pending", Attributes: s.Attributes,
	}
	for _, m := range s.Members {
		c.Bytes += m.Bytes
		c.Members = append(c.Members, api.VolumeMember{
			Claim: m.Claim, Snapshot: provision.MemberName(s.Claim.Name, m.Claim), Handle: m.Handle, Bytes: m.Bytes,
		})
	}
	switch {
	case s.Deleting:
		c.Status = "Deleting"
	case s.Missing && s.Stays:
		c.Status = "Kept"
	case s.Missing:
		c.Status, c.Left = "Missing", s.Left.Round(time.Second).String()
	case s.Ready:
		c.Status = "Ready"
	}
	return c
}

// Check implements [api.Volumes].
func (v shownVolumes) Check(ctx context.Context) ([]api.VolumeFinding, error) {
	found, err := v.csi.volumes.Check(ctx)
	if err != nil {
		return nil, err
	}
	out := []api.VolumeFinding{}
	for _, f := range found {
		out = append(out, findingShown(&f))
	}
	for _, p := range v.provision.Problems() {
		out = append(out, api.VolumeFinding{What: "damaged", Text: p})
	}
	for _, s := range v.provision.List() {
		if s.Error != "" && !slices.Contains([]string{"Pending", "Ready"}, claimShown(&s).Status) {
			out = append(out, api.VolumeFinding{What: "not deleted", Driver: s.Claim.Class.Driver, Handle: s.Handle, Text: s.Claim.String() + ": " + s.Error})
		}
	}
	return out, nil
}

func findingShown(f *node.Finding) api.VolumeFinding {
	return api.VolumeFinding{What: f.What, Driver: f.Driver, Handle: f.Handle, Path: f.Path, Pod: f.Pod, Text: f.Text, CanUndo: f.CanUndo}
}

// Undo implements [api.Volumes].
func (v shownVolumes) Undo(ctx context.Context) ([]api.VolumeFinding, error) {
	found, err := v.csi.volumes.Check(ctx)
	if err != nil {
		return nil, err
	}
	// What pods have comes before what it is staged at, which goes after it only.
	slices.SortStableFunc(found, func(a, b node.Finding) int { return cmp.Compare(len(b.Pod), len(a.Pod)) })
	out := []api.VolumeFinding{}
	for _, f := range found {
		if f.What != node.Orphan {
			continue
		}
		one := findingShown(&f)
		if f.CanUndo {
			if err := v.csi.volumes.Undo(ctx, f); err != nil {
				one.Text = err.Error()
			} else {
				one.Undone, one.Text = true, "its driver has taken it away"
			}
		}
		out = append(out, one)
	}
	return out, nil
}

// Abandon implements [api.Volumes].
func (v shownVolumes) Abandon(driver, handle string) error {
	return asUnknown(v.csi.volumes.Abandon(driver, handle))
}

// Decide implements [api.Volumes].
func (v shownVolumes) Decide(kind, namespace, name string, keep bool) error {
	claim := provision.Ref{Namespace: namespace, Name: name}
	if keep {
		return asUnknown(v.provision.Keep(provision.Kind(kind), claim))
	}
	return asUnknown(v.provision.Delete(provision.Kind(kind), claim))
}

// asUnknown has the API tell of what is not there as of that, and not of a request that is wrong.
func asUnknown(err error) error {
	if errors.Is(err, provision.ErrUnknown) || errors.Is(err, node.ErrUnknown) {
		return api.NotFound(err)
	}
	return err
}

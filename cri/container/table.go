package container

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/berth-node/berth/cri/answer"
	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/sandbox"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Table has all containers and their records.
type Table struct {
	host    *host.Host
	records ledger.Ledger[Record]
	ByID    *ledger.Index[*Container]
	names   ledger.Names
	pods    *sandbox.Sandboxes
	dropped func(imageID string) // called when a container is gone; may be nil
}

// NewTable returns a table of records, none of which is loaded yet. dropped is called when a container is gone, and may
// be nil.
func NewTable(m *host.Host, records ledger.Ledger[Record], ps *sandbox.Sandboxes, dropped func(imageID string)) *Table {
	return &Table{host: m, records: records, ByID: ledger.NewIndex[*Container]("container"), pods: ps, dropped: dropped}
}

// update changes the container's record, on disk first.
func (t *Table) update(c *Container, change func(*Record)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	rec := c.rec
	change(&rec)
	if err := t.records.Put(c.ID, rec); err != nil {
		return err
	}
	c.rec = rec
	return nil
}

// note is update for what has happened already, whether it can be written down or not. Where it cannot, because the
// disk is full perhaps, the next server learns it from the keeper.
func (t *Table) note(c *Container, change func(*Record)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.rec)
	if err := t.records.Note(c.ID, c.rec); err != nil {
		t.host.Log.Error("container record is not written", append(c.LogAttrs(), "error", err)...)
	}
}

// drop ends the container's record.
func (t *Table) drop(c *Container) error {
	if err := t.records.Drop(c.ID, t.host.Paths.Sandbox(c.Sandbox.ID).ContainerRecord(c.ID)); err != nil {
		return err
	}
	c.mu.Lock()
	c.gone = true
	c.mu.Unlock()
	t.ByID.Delete(c.ID)
	t.names.Release(c.ID)
	c.Sandbox.Remove(c.ID)
	if t.dropped != nil {
		t.dropped(c.Record().ImageID)
	}
	return nil
}

// Running finds a container that runs, for what only a running one can do.
func (t *Table) Running(id string) (*Container, host.Keeper, error) {
	c, err := t.ByID.Get(id)
	if err != nil {
		return nil, nil, err
	}
	rec := c.Record()
	if c.state(rec) != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, nil, fmt.Errorf("%w: container is in %s state", fault.ErrPrecondition, rec.State.CRI())
	}
	k, err := c.Sandbox.Live()
	if err != nil {
		return nil, nil, err
	}
	if rec.State != Running {
		return nil, nil, fmt.Errorf("%w: whether the container was started is not known yet", fault.ErrUnavailable)
	}
	return c, k, nil
}

// Of are the containers of a sandbox, in the order they were created.
func (t *Table) Of(sb *sandbox.Sandbox) []*Container {
	var out []*Container
	for _, m := range sb.Members() {
		if c, ok := t.ByID.Exact(m.ID()); ok {
			out = append(out, c)
		}
	}
	return out
}

// Newest is the order of lists.
func Newest(a, b *Container) int {
	switch {
	case a.createdAt > b.createdAt:
		return -1
	case a.createdAt < b.createdAt:
		return 1
	}
	return 0
}

// Status is what clients are told of one container.
func (t *Table) Status(r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := t.ByID.Get(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.Record().State == Creating {
		return nil, fmt.Errorf("container %q: %w", r.GetContainerId(), fault.ErrNotFound) // yet
	}
	out := &runtimeapi.ContainerStatusResponse{Status: containerStatus(c)}
	if r.GetVerbose() {
		rec := c.Record()
		info := map[string]any{
			"sandboxID": c.Sandbox.ID, "pid": rec.Pid, "cgroup": rec.Cgroup, "snapshotter": t.host.Snaps.Name(), "layer": rec.Layer,
			"state": rec.State, "config": c.Config,
		}
		if spec, err := os.ReadFile(t.host.Paths.Container(c.ID).Spec()); err == nil {
			info["runtimeSpec"] = json.RawMessage(spec)
		}
		out.Info, err = answer.Verbose(info)
	}
	return out, err
}

// List is what clients are told of those that a filter names, the newest first.
func (t *Table) List(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var out []*runtimeapi.Container
	for _, c := range t.Match(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()) {
		rec := c.Record()
		if rec.State == Creating || f.GetState() != nil && f.GetState().GetState() != c.state(rec) {
			continue
		}
		out = append(out, &runtimeapi.Container{
			Id: c.ID, PodSandboxId: c.Sandbox.ID, Metadata: c.Config.GetMetadata(), Image: c.Config.GetImage(), ImageRef: rec.ImageID,
			ImageId: rec.ImageID, State: c.state(rec), CreatedAt: rec.CreatedAt, Labels: c.Config.GetLabels(), Annotations: c.Config.GetAnnotations(),
		})
	}
	return out
}

// Match finds containers by what every filter has: ID, sandbox (both may be prefixes) and labels.
func (t *Table) Match(id, sandboxID string, labels map[string]string) []*Container {
	if id != "" {
		c, err := t.ByID.Get(id)
		if err != nil {
			return nil
		}
		id = c.ID
	}
	if sandboxID != "" {
		sb, err := t.pods.Table.ByID.Get(sandboxID)
		if err != nil {
			return nil
		}
		sandboxID = sb.ID
	}
	return t.ByID.Match(func(c *Container) bool {
		return (id == "" || c.ID == id) && (sandboxID == "" || c.Sandbox.ID == sandboxID) && answer.HasLabels(c.Config.GetLabels(), labels)
	}, Newest)
}

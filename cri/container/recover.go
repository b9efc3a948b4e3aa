package container

import (
	"context"

	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/sandbox"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// IDs are those of all records with the sandboxes' by them, "" where that is not known; also of what cannot be read.
func (cs *Containers) IDs() map[string]string {
	out := map[string]string{}
	cs.Table.records.IDs(func(id string) {
		out[id] = ""
		if rec, err := cs.Table.records.Get(id); err == nil {
			out[id] = rec.SandboxID
		}
	})
	return out
}

// Load reads one record, from the table, or, where that has lost some, from its sandbox's directory.
func (cs *Containers) Load(id, of string, lost bool) error {
	t := cs.Table
	sb, err := t.pods.Table.ByID.Get(of)
	if err != nil {
		return err
	}
	own := t.host.Paths.Sandbox(sb.ID).ContainerRecord(id)
	f, err := ledger.Find(&t.records, id, own, lost, func(r Record) (*runtimeapi.ContainerConfig, error) {
		cfg := &runtimeapi.ContainerConfig{}
		if err := ledger.Decode(r.Config, cfg); err != nil {
			return nil, err
		}
		return cfg, r.check(id, cfg, sb)
	})
	if err != nil {
		return err
	}
	if err := t.names.Reserve(f.Rec.Name, id); err != nil {
		return err
	}
	c := newContainer(f.Rec, f.Decoded, sb)
	t.ByID.Put(id, c)
	sb.Add(memberOf{c, cs.Lifecycle, cs.Stopper})
	if f.Adopted {
		t.host.Log.Warn("record of a container was lost, and it is adopted by its pod's own", append(c.LogAttrs(), "state", f.Rec.State)...)
	}
	if err := t.records.Supply(id, f.Rec); err != nil {
		t.host.Log.Warn("container would be lost with the records", append(c.LogAttrs(), "error", err)...)
	}
	return nil
}

// Resume goes on with the containers of a sandbox whose keeper lives. What ended meanwhile is recorded.
func (cs *Containers) Resume(ctx context.Context, sb *sandbox.Sandbox, exits []keeper.Exit) {
	ended := map[string]keeper.Exit{}
	for _, e := range exits {
		ended[e.ContainerID] = e
	}
	for _, c := range cs.Table.Of(sb) {
		state := c.Record().State
		exit, gone := ended[c.ID]
		switch {
		case state == Creating:
			cs.retract(ctx, c)
		case state == Exited:
			cs.resweep(ctx, c)
		case gone && state != Created:
			cs.Lifecycle.finish(ctx, c, outcomeOf(exit))
		}
	}
}

// Settle ends the containers of a sandbox that is not ready any more.
func (cs *Containers) Settle(ctx context.Context, sb *sandbox.Sandbox, exits []keeper.Exit) error {
	for _, c := range cs.Table.Of(sb) {
		switch c.Record().State {
		case Creating:
			cs.retract(ctx, c)
		case Exited, Created:
			cs.resweep(ctx, c)
		default:
			if err := cs.Lifecycle.abandon(ctx, c, exits); err != nil {
				return err
			}
		}
	}
	return nil
}

// retract takes back a container that a crash has left half made. What cannot be taken back now is a container that its
// pod's end takes with it.
func (cs *Containers) retract(ctx context.Context, c *Container) {
	err := cs.host.Steps.Undo(ctx, c, "recover container", cs.recipe.plan(c, noImage))
	if err == nil {
		err = cs.Table.drop(c)
	}
	if err != nil {
		cs.host.Log.Warn("half-made container cannot be taken back yet", append(c.LogAttrs(), "error", err)...)
	}
}

// resweep repeats what follows an exit, which a crash may have cut off.
func (cs *Containers) resweep(ctx context.Context, c *Container) {
	if err := cs.Lifecycle.sweep(ctx, c); err != nil {
		cs.host.Log.Warn("remains of a container are not removed", append(c.LogAttrs(), "error", err)...)
	}
	if c.Record().State == Exited {
		cs.Lifecycle.poststop(ctx, c)
	}
}

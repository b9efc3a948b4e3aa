package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi"
)

// Expand makes a volume larger on the node, after the controller has made it so (NodeExpandVolume). It returns the
// size, or 0 where no pod has the volume and the next that gets it will have that done, unless the Expansion is for
// those alone that have it now; that is remembered, and 0 bytes have it forgotten.
func (m *Manager) Expand(ctx context.Context, e Expansion) (int64, error) {
	size, err := m.expand(ctx, e)
	if err != nil {
		return 0, fmt.Errorf("expand volume: %w", err)
	}
	return size, nil
}

func (m *Manager) expand(ctx context.Context, e Expansion) (int64, error) {
	if err := csi.CheckName(e.Driver); err != nil {
		return 0, err
	}
	if !isHandle(e.Handle) || e.Bytes < 0 || e.Limit < 0 || e.Limit > 0 && e.Limit < e.Bytes {
		return 0, fmt.Errorf("volume %q cannot have %d to %d bytes", e.Handle, e.Bytes, e.Limit)
	}
	v, unlock, err := m.ledger.lock(ctx, key(e.Driver, e.Handle), e.Driver)
	if err != nil {
		return 0, err
	}
	defer unlock()
	if why := m.ledger.unreadable(v.key); why != "" {
		return 0, errors.New(why)
	}
	here := v.record != nil && (v.note.Staged != nil || len(v.note.Published) > 0)
	if !here && e.Held && e.Bytes > 0 {
		return 0, nil
	}
	if err := (expanding{m}).due(v, e); err != nil {
		return 0, err
	}
	if !here || v.record == nil || v.record.Expand == nil {
		return v.note.Size, nil
	}
	if err := m.ledger.mayTry(&v.expand); err != nil {
		return 0, err
	}
	d, err := m.drivers.Get(e.Driver)
	if err != nil {
		return 0, err
	}
	if err := (expanding{m}).expandNow(ctx, v, d, e.Secrets); err != nil {
		return 0, err
	}
	return v.note.Size, nil
}

// expanding is what makes a volume larger on the node.
type expanding struct{ m *Manager }

// due records what size a volume is to have.
func (x expanding) due(v *entry, e Expansion) error {
	var next record
	switch {
	case v.record != nil:
		next = *v.record
	case e.Bytes == 0:
		return nil
	case !isName(e.Name):
		return fmt.Errorf("%q is no name of a volume", e.Name)
	default:
		next = record{Version: recordVersion, volume: volume{Driver: e.Driver, Handle: e.Handle, Name: e.Name, Mode: ReadWriteOnce}}
	}
	var want *expansion
	if e.Bytes > v.note.Size {
		want = &expansion{e.Bytes, e.Limit, e.Held}
	}
	empty := want == nil && len(next.Uses) == 0 && next.Stage == "" && next.Attach == ""
	if want.is(next.Expand) && !empty {
		return nil
	}
	if next.Expand = want; want == nil {
		next = *next.let()
	}
	x.m.ledger.soon(&v.expand) // what has failed was another size
	if empty {
		return x.m.ledger.forget(v)
	}
	return x.m.ledger.keep(v, &next)
}

// expandDue expands a volume that a pod gets where that is due. One that cannot be expanded is as good as it was for
// pods that have it, and stays due.
func (x expanding) expandDue(ctx context.Context, v *entry, d *csi.Driver, secrets map[string]string) {
	if v.record.Expand == nil || x.m.ledger.mayTry(&v.expand) != nil {
		return
	}
	if err := x.expandNow(ctx, v, d, secrets); err != nil {
		x.m.log.Warn("volume is not expanded on the node", "driver", d.Name, "handle", v.record.Handle, "error", err)
	}
}

func (x expanding) expandNow(ctx context.Context, v *entry, d *csi.Driver, secrets map[string]string) error {
	size, err := x.expandCall(ctx, v, d, secrets)
	x.m.ledger.tried(ctx, &v.expand, err)
	if csi.CodeOf(err) == codes.FailedPrecondition && slices.ContainsFunc(v.record.Uses, func(u use) bool { return u.Awaits }) {
		// The driver expands it while nobody uses it alone: whoever waits for it would wait for good.
		return errors.Join(err, x.m.ledger.keep(v, v.record.let()))
	}
	if err != nil {
		return err
	}
	if err := x.m.ledger.mark(v, func(n *note) { n.Size = size }); err != nil {
		return err
	}
	x.m.step("expanded")
	next := v.record.let()
	next.Expand = nil
	return x.m.ledger.keep(v, next)
}

// again is for a pod that a volume is published to: it may still wait for the expansion, whose next try is that of who
// calls [Manager.Expand].
func (x expanding) again(ctx context.Context, v *entry, path string, r *Request) error {
	if !v.record.awaits(path) {
		if d, err := x.m.drivers.Get(r.Driver); err == nil {
			x.expandDue(ctx, v, d, r.Secrets.NodeExpand)
		}
		return nil
	}
	if r.Expand != v.record.Expand.Bytes { // another size is wanted by now, or none
		if err := x.due(v, Expansion{Bytes: r.Expand, Held: true}); err != nil {
			return err
		}
	}
	return x.awaited(v, path)
}

// awaited is the error of a pod that does not get a volume yet.
func (x expanding) awaited(v *entry, path string) error {
	if !v.record.awaits(path) {
		return nil
	}
	x.m.ledger.mu.Lock()
	defer x.m.ledger.mu.Unlock()
	return fmt.Errorf("expand it to %d bytes first: %w", v.record.Expand.Bytes, cmp.Or(v.expand.last, errNotYet))
}

var errNotYet = errors.New("it is about to be")

func (x expanding) expandCall(ctx context.Context, v *entry, d *csi.Driver, secrets map[string]string) (int64, error) {
	due := v.record.Expand
	if !d.Node(spec.NodeServiceCapability_RPC_EXPAND_VOLUME) { // the controller has done all
		return due.Bytes, nil
	}
	path := v.record.Stage
	for _, p := range slices.Backward(slices.Sorted(maps.Keys(v.note.Published))) {
		// Where a pod may only read, a driver that goes by the path could not write either.
		if i := v.record.use(p); path == v.record.Stage || i >= 0 && !v.record.Uses[i].ReadOnly {
			path = p
		}
	}
	x.m.step("expand")
	answer, err := d.Client().Node().NodeExpandVolume(ctx, &spec.NodeExpandVolumeRequest{
		VolumeId: v.record.Handle, VolumePath: path, StagingTargetPath: v.record.Stage,
		CapacityRange:    &spec.CapacityRange{RequiredBytes: due.Bytes, LimitBytes: due.Limit},
		VolumeCapability: v.record.capability(d), Secrets: secrets,
	})
	if csi.CodeOf(err) == codes.Unimplemented {
		return due.Bytes, nil
	}
	return max(answer.GetCapacityBytes(), due.Bytes), err
}

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi"
)

// Check compares the records with the kernel's list of mounts, and with what is beside volumes. It changes nothing.
func (m *Manager) Check(ctx context.Context) ([]Finding, error) {
	out, err := m.compare()
	if err == nil && len(out) > 0 { // what was being done just then is not found again
		var again []Finding
		again, err = m.compare()
		out = slices.DeleteFunc(again, func(f Finding) bool { return !slices.ContainsFunc(out, f.same) })
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("check volumes: %w", err)
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Path, b.Path)) })
	return out, nil
}

func (f Finding) same(o Finding) bool {
	return f.What == o.What && f.Driver == o.Driver && f.Handle == o.Handle && f.Path == o.Path && f.Pod == o.Pod
}

// compare is one look. Places are listed before the records are read: what comes meanwhile is not found.
func (m *Manager) compare() ([]Finding, error) {
	mounts, err := mountPoints()
	if err != nil {
		return nil, err
	}
	places := maps.Clone(mounts)
	for _, path := range m.ledger.layout.begun() {
		places[path] = true
	}
	var out []Finding
	m.ledger.mu.Lock()
	recorded := map[string]bool{}
	for _, v := range m.ledger.entries {
		if v.record != nil {
			out = append(out, v.findings(mounts, recorded)...)
		}
	}
	for path, why := range m.ledger.damaged {
		out = append(out, Finding{What: Damaged, Path: path, Text: why})
	}
	for _, why := range m.ledger.later {
		out = append(out, Finding{What: Damaged, Text: why})
	}
	m.ledger.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(places)) {
		if m.ledger.layout.within(path) && !covered(recorded, path) {
			if f, is := m.ledger.orphan(m.drivers, path, mounts[path]); is {
				out = append(out, f)
			}
		}
	}
	for name, began := range m.calls.Stuck() {
		out = append(out, Finding{What: Hanging, Text: name + " since " + began.Format(time.RFC3339)})
	}
	return out, nil
}

// covered says whether a record tells of a path, or of one that it is in: what is mounted in a volume is its users'.
func covered(recorded map[string]bool, path string) bool {
	for ; path != "/"; path = filepath.Dir(path) {
		if recorded[path] {
			return true
		}
	}
	return false
}

// findings is what there is to say of a volume with a record. It adds its paths to those that are recorded.
func (v *entry) findings(mounts, recorded map[string]bool) []Finding {
	r, n := v.record, v.note
	var out []Finding
	say := func(what, path, pod, text string) {
		out = append(out, Finding{What: what, Driver: r.Driver, Handle: r.Handle, Path: path, Pod: pod, Text: text})
	}
	recorded[r.Stage] = true
	if r.Stage != "" && n.Staged == nil {
		say(HalfDone, r.Stage, "", "it is staged or unstaged, and not known to be done")
	}
	if n.Staged != nil && n.Staged.Mount && !mounts[r.Stage] {
		say(Missing, r.Stage, "", "what the driver has mounted there is gone")
	}
	for _, u := range r.Uses {
		recorded[u.Path] = true
		switch {
		case !n.published(u.Path):
			say(HalfDone, u.Path, u.UID, "it is published or unpublished, and not known to be done")
		case n.Published[u.Path].Mount && !mounts[u.Path]:
			say(Missing, u.Path, u.UID, "what the driver has mounted there is gone")
		}
	}
	if len(n.Published) > 0 && r.Expand != nil {
		say(HalfDone, r.Stage, "", fmt.Sprintf("it is to be expanded to %d bytes, and not known to be", r.Expand.Bytes))
	}
	if len(r.Uses) == 0 && r.Expand == nil {
		say(Unused, r.Stage, "", "no pod has it")
	}
	return out
}

// orphan is what there is where only drivers mount, and no record tells of; false: the record is one that is left
// alone.
func (m *ledger) orphan(drivers *csi.Drivers, path string, mounted bool) (f Finding, is bool) {
	f = Finding{What: Orphan, Path: path, Text: "no record tells of this mount"}
	if !mounted {
		f.Text = "no record tells of what was begun here"
	}
	f.Pod = m.layout.podOf(path)
	d, known := readData(m.layout.dataDir(path))
	if !known {
		return f, true
	}
	if m.unreadable(key(d.Driver, d.Handle)) != "" {
		return f, false
	}
	f.Driver, f.Handle = d.Driver, d.Handle
	_, ours := m.layout.ours(path)
	_, err := drivers.Get(d.Driver)
	f.CanUndo = ours && err == nil
	return f, true
}

// Undo has the driver of an orphan take it away.
func (m *Manager) Undo(ctx context.Context, f Finding) error {
	if err := m.undo(ctx, f); err != nil {
		return fmt.Errorf("undo orphan %s: %w", f.Path, err)
	}
	return nil
}

func (m *Manager) undo(ctx context.Context, f Finding) error {
	stage, ours := m.ledger.layout.ours(f.Path)
	known, ok := readData(m.ledger.layout.dataDir(f.Path))
	switch {
	case f.What != Orphan || !ours || filepath.Clean(f.Path) != f.Path:
		return errors.New("it is none")
	case !ok || known.Driver != f.Driver || known.Handle != f.Handle:
		return errors.New("its driver and its handle are not known")
	}
	v, unlock, err := m.ledger.lock(ctx, key(f.Driver, f.Handle), f.Driver)
	if err != nil {
		return err
	}
	defer unlock()
	if why := m.ledger.unreadable(v.key); why != "" {
		return errors.New(why)
	}
	if r := v.record; r != nil && (stage || r.use(f.Path) >= 0) {
		return errors.New("there is a record of it by now")
	}
	d, err := m.drivers.Get(f.Driver)
	if err != nil {
		return err
	}
	block := m.ledger.layout.isBlock(f.Path)
	if !stage {
		_, err := d.Client().Node().NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: f.Handle, TargetPath: f.Path})
		if !gone(err) {
			return err
		}
		return undoing{m}.clearPod(ctx, f.Path, block)
	}
	_, err = d.Client().Node().NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: f.Handle, StagingTargetPath: f.Path})
	if !gone(err) && csi.CodeOf(err) != codes.Unimplemented {
		return err
	}
	return undoing{m}.clearStage(ctx, f.Path, block)
}

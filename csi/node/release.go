package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi"
)

// Release takes all volumes away from the pod that has the directory, of which nothing else need be known, and undoes
// what no other pod uses. It can be repeated, and is safe when Publish never ran. Afterwards nothing of this package is
// in the pod's directory.
func (m *Manager) Release(ctx context.Context, podDir string) error {
	podDir = filepath.Clean(podDir)
	var wait sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, key := range m.keysOf(podDir) {
		wait.Go(func() { // one driver that takes its time holds up no other
			if err := m.releaseOne(ctx, key, podDir); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wait.Wait()
	errs = append(errs, m.stays(podDir))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release volumes: %w", err)
	}
	return nil
}

// stays says which volume a pod has whose record is of a later version: it is not known how to undo it.
func (m *Manager) stays(podDir string) error {
	paths, err := filepath.Glob(filepath.Join(globEscape(podDir), "volumes", pluginName, "*", dataFile))
	if err != nil {
		return err
	}
	for _, path := range paths {
		if d, ok := readData(filepath.Dir(path)); ok {
			if why := m.ledger.unreadable(key(d.Driver, d.Handle)); why != "" {
				return fmt.Errorf("volume %s: %s", filepath.Base(filepath.Dir(path)), why)
			}
		}
	}
	return nil
}

func (m *Manager) keysOf(podDir string) []string {
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	var out []string
	for key, v := range m.ledger.entries {
		if v.record != nil && slices.ContainsFunc(v.record.Uses, func(u use) bool { return u.Dir == podDir }) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

func (m *Manager) releaseOne(ctx context.Context, key, podDir string) error {
	v, unlock, err := m.ledger.lock(ctx, key, "")
	if err != nil {
		return err
	}
	defer unlock()
	if v.record == nil {
		return nil
	}
	name := v.record.Name
	if err := m.ledger.mayTry(&v.release); err != nil {
		return fmt.Errorf("volume %s: %w", name, err)
	}
	err = m.releaseUses(ctx, v, podDir)
	m.ledger.tried(ctx, &v.release, err)
	if err != nil {
		return fmt.Errorf("volume %s: %w", name, err)
	}
	return nil
}

func (m *Manager) releaseUses(ctx context.Context, v *entry, podDir string) error {
	if m.ledger.abandoned(v) {
		return undoing{m}.abandon(ctx, v, podDir)
	}
	d, err := m.drivers.Get(v.record.Driver)
	if err != nil {
		return err
	}
	for _, u := range v.record.Uses {
		if u.Dir != podDir {
			continue
		}
		if err := (undoing{m}).unpublish(ctx, v, d, u.Path); err != nil {
			return err
		}
		// The last use stays until all is undone: it is what has that tried again.
		if len(v.record.Uses) == 1 {
			err = undoing{m}.unwind(ctx, v, d)
		} else {
			m.step("record without")
			err = m.ledger.keep(v, v.record.without(u.Path))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// undoing are the calls that take away what was done, each with what is left around its place.
type undoing struct{ m *Manager }

// unpublish undoes the publishing of a volume, whether it was done or only begun, or was ended by the machine's start.
func (u undoing) unpublish(ctx context.Context, v *entry, d *csi.Driver, path string) error {
	u.m.step("unpublish")
	if v.note.published(path) {
		if err := u.m.ledger.mark(v, func(n *note) { delete(n.Published, path) }); err != nil {
			return err
		}
	}
	_, err := d.Client().Node().NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: v.record.Handle, TargetPath: path})
	if !gone(err) {
		return err
	}
	u.m.step("unpublished")
	return u.clearPod(ctx, path, v.record.Block)
}

// clearPod removes what there is around the place of a pod's volume.
func (u undoing) clearPod(ctx context.Context, path string, block bool) error {
	if err := u.clear(ctx, path); err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if block {
		err := unix.Rmdir(dir)
		dir = u.m.ledger.layout.blockData(filepath.Base(dir))
		if err != nil && !errors.Is(err, unix.ENOENT) || dir == "" { // another pod has it
			return nil
		}
	}
	if err := removeData(dir); err != nil {
		return err
	}
	rmdirs(dir, 2)
	return nil
}

// unwind undoes all that was done for a volume that nobody has any more, and then there is no record of it, unless an
// expansion is due at whoever has it next.
func (u undoing) unwind(ctx context.Context, v *entry, d *csi.Driver) error {
	if err := u.unstage(ctx, v, d); err != nil {
		return err
	}
	if err := u.detach(ctx, v, d); err != nil {
		return err
	}
	u.m.step("forget")
	if due := v.record.Expand; due != nil && !due.Held {
		return u.m.ledger.keep(v, &record{Version: recordVersion, volume: v.record.volume, Expand: due})
	}
	return u.m.ledger.forget(v)
}

func (u undoing) unstage(ctx context.Context, v *entry, d *csi.Driver) error {
	path := v.record.Stage
	if path == "" {
		return nil
	}
	u.m.step("unstage")
	if v.note.Staged != nil {
		if err := u.m.ledger.mark(v, func(n *note) { n.Staged, n.Doubted, n.Size = nil, false, 0 }); err != nil {
			return err
		}
	}
	_, err := d.Client().Node().NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: v.record.Handle, StagingTargetPath: path})
	// A driver that stages no more, since it is of another version, has nothing staged.
	if !gone(err) && csi.CodeOf(err) != codes.Unimplemented {
		return err
	}
	u.m.step("unstaged")
	return u.clearStage(ctx, path, v.record.Block)
}

// clearStage removes what there is around the place where a volume was staged.
func (u undoing) clearStage(ctx context.Context, path string, block bool) error {
	if err := u.clear(ctx, path); err != nil || block {
		return err
	}
	dir := filepath.Dir(path)
	if err := removeData(dir); err != nil {
		return err
	}
	rmdirs(dir, 2)
	return nil
}

func (u undoing) detach(ctx context.Context, v *entry, d *csi.Driver) error {
	if v.record.Attach == "" {
		return nil
	}
	u.m.step("detach")
	if v.note.Attached {
		if err := u.m.ledger.mark(v, func(n *note) { n.Attached, n.Context = false, nil }); err != nil {
			return err
		}
	}
	secrets, unread := u.attachSecret(v.record.Secret)
	_, err := d.Client().Controller().ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{
		VolumeId: v.record.Handle, NodeId: v.record.Attach, Secrets: secrets,
	})
	if !gone(err) && csi.CodeOf(err) != codes.Unimplemented {
		return errors.Join(err, unread)
	}
	u.m.step("detached")
	return nil
}

// attachSecret is what the driver was given to attach a volume. Where that cannot be read any more the driver is asked
// without: it may do.
func (u undoing) attachSecret(of *SecretRef) (map[string]string, error) {
	if of == nil || u.m.cfg.Secret == nil {
		return nil, nil
	}
	out, err := u.m.cfg.Secret(*of)
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s of the attachment: %w", of.Namespace, of.Name, err)
	}
	return out, nil
}

package node

import (
	"context"
	"errors"
	"fmt"
)

// ErrUnknown is the error of a volume that is not on the node.
var ErrUnknown = errors.New("there is none")

// Abandon frees the pods that terminate from a volume that its driver does not unpublish, as one that is not on the
// node any more: what is mounted is unmounted, and the driver is not asked. What it has made besides, such as a device,
// stays. It counts for the next pod that goes, and for nobody who does not wait for the driver.
func (m *Manager) Abandon(driver, handle string) error {
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	v := m.ledger.entries[key(driver, handle)]
	switch {
	case v == nil || v.record == nil:
		return fmt.Errorf("abandon volume: %w", ErrUnknown)
	case v.release.last == nil:
		return errors.New("abandon volume: nobody waits for its driver to take it away")
	}
	v.abandoned = true
	v.release.soon()
	return nil
}

func (m *ledger) abandoned(v *entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return v.abandoned
}

// abandon takes a volume away from a pod without its driver.
func (u undoing) abandon(ctx context.Context, v *entry, podDir string) error {
	for _, one := range v.record.Uses {
		if one.Dir != podDir {
			continue
		}
		if err := u.m.ledger.mark(v, func(n *note) { delete(n.Published, one.Path) }); err != nil {
			return err
		}
		if err := u.clearPod(ctx, one.Path, v.record.Block); err != nil {
			return err
		}
		if len(v.record.Uses) > 1 {
			if err := u.m.ledger.keep(v, v.record.without(one.Path)); err != nil {
				return err
			}
			continue
		}
		if stage := v.record.Stage; stage != "" {
			if err := u.m.ledger.mark(v, func(n *note) { n.Staged = nil }); err != nil {
				return err
			}
			if err := u.clearStage(ctx, stage, v.record.Block); err != nil {
				return fmt.Errorf("unstage: %w", err)
			}
		}
		u.m.log.Warn("volume was taken away without its driver, which may still have a device or an attachment of it",
			"driver", v.record.Driver, "handle", v.record.Handle, "attached-to", v.record.Attach)
		if err := u.m.ledger.forget(v); err != nil {
			return err
		}
		break
	}
	u.m.ledger.mu.Lock()
	defer u.m.ledger.mu.Unlock()
	v.abandoned = false
	return nil
}

package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Users are the pods that have a volume, are about to get it, or are about to lose it.
func (m *Manager) Users(driver, handle string) []Pod {
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	v := m.ledger.entries[key(driver, handle)]
	if v == nil || v.record == nil {
		return nil
	}
	var out []Pod
	for _, u := range v.record.Uses {
		out = append(out, u.pod())
	}
	return out
}

// Unreadable says why it is not known who has a volume: there is a record that cannot be read, or could not be.
func (m *Manager) Unreadable(driver, handle string) error {
	id := key(driver, handle)
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	if why := m.ledger.later[id]; why != "" {
		return errors.New(why)
	}
	for _, suffix := range []string{recordSuffix, badSuffix} {
		path := m.ledger.journal.path(id, suffix)
		if why := m.ledger.damaged[path]; why != "" {
			return fmt.Errorf("record %s tells who has the volume, and is damaged: %s", path, why)
		}
	}
	return nil
}

// Count is how many volumes of a driver are on the node, for its limit.
func (m *Manager) Count(driver string) int {
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	n := 0
	for _, v := range m.ledger.entries {
		if v.record != nil && v.record.Driver == driver && len(v.record.Uses) > 0 {
			n++
		}
	}
	return n
}

func (u use) pod() Pod { return Pod{u.Namespace, u.Pod, u.UID, u.Account} }

// List returns all volumes, in order.
func (m *Manager) List() []State {
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	out := []State{}
	for _, v := range m.ledger.entries {
		if v.record != nil {
			out = append(out, v.state())
		}
	}
	slices.SortFunc(out, func(a, b State) int {
		return cmp.Or(cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Handle, b.Handle))
	})
	return out
}

func (v *entry) state() State {
	r, n := v.record, v.note
	s := State{
		Driver: r.Driver, Handle: r.Handle, Name: r.Name, Ephemeral: r.Ephemeral, Block: r.Block, AccessMode: r.Mode,
		StagePath: r.Stage, Staged: n.Staged != nil, Attached: n.Attached, Size: n.Size,
	}
	if r.Expand != nil {
		s.ExpansionDue = r.Expand.Bytes
	}
	for _, u := range r.Uses {
		s.Uses = append(s.Uses, Use{u.pod(), u.Dir, u.Name, u.Path, u.ReadOnly, n.published(u.Path)})
	}
	for _, try := range []*retry{&v.publish, &v.release, &v.expand} {
		if try.last != nil {
			s.Error = try.last.Error()
		}
	}
	return s
}

package ledger

import (
	"fmt"
	"sync"

	"github.com/berth-node/berth/cri/fault"
)

// Names keeps each name for one ID at a time.
type Names struct {
	mu   sync.Mutex
	byID map[string]string
	ids  map[string]string
}

// Reserve takes name for id. Taking it twice for the same ID is one reservation.
func (n *Names) Reserve(name, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ids == nil {
		n.ids, n.byID = map[string]string{}, map[string]string{}
	}
	if have, ok := n.ids[name]; ok && have != id {
		return fmt.Errorf("name %q is reserved for %q: %w", name, have, fault.ErrExists)
	}
	n.ids[name], n.byID[id] = id, name
	return nil
}

// Release gives the name of id back.
func (n *Names) Release(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ids, n.byID[id])
	delete(n.byID, id)
}

package source

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
)

// Both merges what manifests and an API server ask for into one stream. Of two that ask for a pod of one name the first
// one has it; the other one comes when that does not want it any more. Objects of the two are apart anyway. The zero
// value has heard of nothing.
type Both struct {
	holders map[types.NamespacedName]bool           // pods that are wanted: whether by the API server
	waiting map[types.NamespacedName]desired.Update // the other one's pod of a name
	synced  [2]bool
}

// Add takes an update in and returns what is to be passed on: at the end of a pod that another one has waited for, two.
// cluster says that it comes from the API server. Synced is passed on when both have said it.
func (b *Both) Add(u desired.Update, cluster bool) []desired.Update {
	if u.Synced {
		b.synced[index(cluster)] = true
		if b.synced[0] && b.synced[1] {
			return []desired.Update{u}
		}
		return nil
	}
	if u.Kind != "" && u.Kind != object.Pod {
		return []desired.Update{u}
	}
	if b.holders == nil {
		b.holders, b.waiting = map[types.NamespacedName]bool{}, map[types.NamespacedName]desired.Update{}
	}
	holder, held := b.holders[u.Key]
	switch {
	case held && holder != cluster && u.Pod == nil:
		delete(b.waiting, u.Key)
		return nil
	case held && holder != cluster:
		b.waiting[u.Key] = u
		return nil
	case u.Pod != nil:
		b.holders[u.Key] = cluster
		return []desired.Update{u}
	}
	delete(b.holders, u.Key)
	next, ok := b.waiting[u.Key]
	if !ok {
		return []desired.Update{u}
	}
	delete(b.waiting, u.Key)
	b.holders[u.Key] = !cluster
	return []desired.Update{u, next}
}

// Waits says whether a pod waits for another one of its name, of the other origin, to go.
func (b *Both) Waits(key types.NamespacedName) bool {
	_, ok := b.waiting[key]
	return ok
}

func index(cluster bool) int {
	if cluster {
		return 1
	}
	return 0
}

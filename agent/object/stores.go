package object

import "sync"

// Origin is where a pod or an object comes from.
type Origin interface {
	// Cluster says whether that is an API server.
	Cluster() bool
}

// Stores are the objects of the node's manifests and those of an API server. A pod has those of where it comes from and
// no others: two objects of one name are two, and who may write the one need not be who may write the other. The zero
// value is empty.
type Stores struct {
	manifests, cluster Store
	once               sync.Once
}

// Of is the store for what comes from there.
func (s *Stores) Of(o Origin) *Store {
	s.once.Do(func() { s.cluster.served = true })
	if o.Cluster() {
		return &s.cluster
	}
	return &s.manifests
}

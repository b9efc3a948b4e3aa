package object

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SnapshotGroup is the API group of snapshots.
const SnapshotGroup = "snapshot.storage.k8s.io"

// Pending says which claims have no volume yet, since it is being made, and what about it. It replaces what was said
// before.
func (s *Store) Pending(why map[types.NamespacedName]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = maps.Clone(why)
}

// DataSource is what a claim's volume is to be filled with: "", when it is to be empty.
func DataSource(s *corev1.PersistentVolumeClaimSpec) (kind Kind, group, name string) {
	switch {
	case s.DataSource != nil:
		if s.DataSource.APIGroup != nil {
			group = *s.DataSource.APIGroup
		}
		return Kind(s.DataSource.Kind), group, s.DataSource.Name
	case s.DataSourceRef != nil:
		if s.DataSourceRef.APIGroup != nil {
			group = *s.DataSourceRef.APIGroup
		}
		return Kind(s.DataSourceRef.Kind), group, s.DataSourceRef.Name
	}
	return "", "", ""
}

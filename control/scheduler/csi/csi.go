// Package csi tells plugins of the scheduler which drivers of volumes nodes have, as the API has it.
package csi

import (
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Manager implements [fwk.CSIManager] by informers.
type Manager struct{ nodes storagelisters.CSINodeLister }

var _ fwk.CSIManager = (*Manager)(nil)

// New makes a manager. Who starts the informers has it know.
func New(f informers.SharedInformerFactory) *Manager {
	return &Manager{f.Storage().V1().CSINodes().Lister()}
}

// CSINodes implements [fwk.CSIManager].
func (m *Manager) CSINodes() fwk.CSINodeLister { return lister{m.nodes} }

type lister struct{ nodes storagelisters.CSINodeLister }

// List implements [fwk.CSINodeLister].
func (l lister) List() ([]*storagev1.CSINode, error) {
	all, err := l.nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list drivers of nodes: %w", err)
	}
	return all, nil
}

// Get implements [fwk.CSINodeLister].
func (l lister) Get(name string) (*storagev1.CSINode, error) {
	n, err := l.nodes.Get(name)
	if err != nil {
		return nil, fmt.Errorf("find drivers of node: %w", err)
	}
	return n, nil
}

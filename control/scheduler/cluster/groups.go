package cluster

import (
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Groups of pods are of an API that is not served by default: without it there are none, and none is found.

// PodGroupStates implements [fwk.SharedLister].
func (s *Snapshot) PodGroupStates() fwk.PodGroupStateLister { return noStates{} }

// PodGroups implements [fwk.SharedLister].
func (s *Snapshot) PodGroups() fwk.PodGroupLister { return noGroups{} }

// CompositePodGroupStates implements [fwk.SharedLister].
func (s *Snapshot) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return noCompositeStates{}
}

// CompositePodGroups implements [fwk.SharedLister].
func (s *Snapshot) CompositePodGroups() fwk.CompositePodGroupLister { return noCompositeGroups{} }

type (
	noStates          struct{}
	noGroups          struct{}
	noCompositeStates struct{}
	noCompositeGroups struct{}
)

func (noStates) Get(string, string) (fwk.PodGroupState, error) { return nil, fwk.ErrNotFound }

func (noGroups) Get(string, string) (*schedulingv1beta1.PodGroup, error) { return nil, fwk.ErrNotFound }

func (noCompositeStates) Get(string, string) (fwk.CompositePodGroupState, error) {
	return nil, fwk.ErrNotFound
}

func (noCompositeGroups) Get(string, string) (*schedulingv1alpha3.CompositePodGroup, error) {
	return nil, fwk.ErrNotFound
}

package volumebinding

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"
)

// Why a node is not taken, in Kubernetes' words.
const (
	noneToBind   = "node(s) didn't find available persistent volumes to bind"
	wrongNode    = "node(s) didn't match PersistentVolume's node affinity"
	noSpace      = "node(s) did not have enough free storage"
	noSuchVolume = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
)

// choose finds what the claims of a pod would get on a node, or why they cannot have it.
func (v *volumeBinding) choose(w *wanted, node *corev1.Node) (choice, []string, error) {
	var c choice
	var reasons []string
	for _, bound := range w.bound {
		if bound == nil {
			return c, []string{noSuchVolume}, nil
		}
		if volume.CheckNodeAffinity(bound, node.Labels) != nil && !slices.Contains(reasons, wrongNode) {
			reasons = append(reasons, wrongNode)
		}
	}
	if len(w.open) == 0 {
		return c, reasons, nil
	}
	taken := map[string]*corev1.PersistentVolume{}
	// The smallest claim first: it takes the smallest volume, and what is left is for the larger ones.
	for _, claim := range slices.SortedFunc(slices.Values(w.open), bySize) {
		if on, selected := claim.Annotations[volume.AnnSelectedNode]; selected {
			if on != node.Name {
				return c, append(reasons, noneToBind), nil
			}
			c.provision = append(c.provision, claim)
			continue
		}
		class := volume.GetPersistentVolumeClaimClass(claim)
		found, err := volume.FindMatchingVolume(claim, w.volumes[class], node, taken, false, true)
		if err != nil {
			return c, nil, fmt.Errorf("match claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		if found != nil {
			taken[found.Name] = found
			c.bind = append(c.bind, pair{found, claim})
			continue
		}
		why, err := v.provisions(claim, node)
		if err != nil {
			return c, nil, err
		}
		if why != "" {
			return c, append(reasons, why), nil
		}
		c.provision = append(c.provision, claim)
	}
	return c, reasons, nil
}

func bySize(a, b *corev1.PersistentVolumeClaim) int {
	x, y := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
	return cmp.Or(x.Cmp(y), cmp.Compare(a.Name, b.Name))
}

// provisions says why a volume could not be made for a claim on a node; "": it could.
func (v *volumeBinding) provisions(claim *corev1.PersistentVolumeClaim, node *corev1.Node) (string, error) {
	class, err := v.classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	if err != nil {
		return "", fmt.Errorf("find class of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	if class.Provisioner == "" || class.Provisioner == volume.NotSupportedProvisioner || !inTopology(class.AllowedTopologies, node.Labels) {
		return noneToBind, nil
	}
	driver, err := v.drivers.Get(class.Provisioner)
	if err != nil || driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity {
		return "", nil // nobody says how much there is
	}
	capacities, err := v.capacities.List(labels.Everything())
	if err != nil {
		return "", fmt.Errorf("list capacities: %w", err)
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	for _, c := range capacities {
		if c.StorageClassName != class.Name || !reaches(c, node) {
			continue
		}
		has := c.Capacity
		if c.MaximumVolumeSize != nil {
			has = c.MaximumVolumeSize
		}
		if has != nil && has.Cmp(size) >= 0 {
			return "", nil
		}
	}
	return noSpace, nil
}

// inTopology says whether a node is where a class allows volumes to be made: anywhere, if it does not say.
func inTopology(terms []corev1.TopologySelectorTerm, has map[string]string) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		return len(t.MatchLabelExpressions) > 0 && !slices.ContainsFunc(t.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			value, there := has[e.Key]
			return !there || !slices.Contains(e.Values, value)
		})
	})
}

// reaches says whether a node reaches the storage that a capacity is about.
func reaches(c *storagev1.CSIStorageCapacity, node *corev1.Node) bool {
	if c.NodeTopology == nil {
		return false
	}
	s, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
	return err == nil && s.Matches(labels.Set(node.Labels))
}

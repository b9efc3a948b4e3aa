package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// images are what images nodes have, and how many nodes have each.
type images struct {
	all map[string]*fwk.ImageStateSummary
	// changed counts up whenever an image is on more or fewer nodes.
	changed int64
}

// change is told of a node's images before and after; either may be nil.
func (i *images) change(before, after *corev1.Node) {
	had, has := imagesOf(before), imagesOf(after)
	if sameImages(before, after) {
		return
	}
	if i.all == nil {
		i.all = map[string]*fwk.ImageStateSummary{}
	}
	i.changed++
	for name := range had {
		if _, still := has[name]; still {
			continue
		}
		if s := i.all[name]; s != nil {
			s.Nodes.Delete(before.Name)
			if s.Nodes.Len() == 0 {
				delete(i.all, name)
			}
		}
	}
	for name, size := range has {
		s := i.all[name]
		if s == nil {
			s = &fwk.ImageStateSummary{Nodes: sets.New[string]()}
			i.all[name] = s
		}
		s.Size = size
		s.Nodes.Insert(after.Name)
	}
}

// of are the images of a node as a snapshot has them.
func (i *images) of(node *corev1.Node) map[string]*fwk.ImageStateSummary {
	states := map[string]*fwk.ImageStateSummary{}
	for name := range imagesOf(node) {
		if s := i.all[name]; s != nil {
			states[name] = s.Snapshot()
		}
	}
	return states
}

func imagesOf(node *corev1.Node) map[string]int64 {
	if node == nil || len(node.Status.Images) == 0 {
		return nil
	}
	sizes := map[string]int64{}
	for _, image := range node.Status.Images {
		for _, name := range image.Names {
			sizes[name] = image.SizeBytes
		}
	}
	return sizes
}

// sameImages says whether nothing has changed, as is so nearly always when a node says that it is alive.
func sameImages(a, b *corev1.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	if len(a.Status.Images) != len(b.Status.Images) {
		return false
	}
	for i := range a.Status.Images {
		x, y := &a.Status.Images[i], &b.Status.Images[i]
		if x.SizeBytes != y.SizeBytes || len(x.Names) != len(y.Names) {
			return false
		}
		for j := range x.Names {
			if x.Names[j] != y.Names[j] {
				return false
			}
		}
	}
	return true
}

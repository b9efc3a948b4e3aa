package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// maxNodeID is how long a driver's name of the node may be in a CSINode, in bytes.
const maxNodeID = 256

// unfit is why the API server would not have what a driver says of the node, "" where it would: with one that is wrong
// it refuses what all the others say.
func (d *Driver) unfit() string {
	if n := len(d.NodeID); n == 0 || n > maxNodeID {
		return fmt.Sprintf("it knows the node by a name of %d bytes, and a CSINode has 1 to %d", n, maxNodeID)
	}
	for _, key := range slices.Sorted(maps.Keys(d.Topology)) {
		wrong := slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(d.Topology[key]))
		if len(wrong) > 0 {
			return fmt.Sprintf("it says that the node is in %.100q=%.100q, which is no label: %s", key, d.Topology[key], wrong[0])
		}
	}
	return ""
}

// mayHave says whether a node may give itself a label: of those of Kubernetes the API server has few of a node
// (NodeRestriction), and refuses the others with all that comes with them.
func mayHave(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	below := func(of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
	return !below("kubernetes.io") && !below("k8s.io") || slices.Contains(ownLabels, key) ||
		below("kubelet.kubernetes.io") || below("node.kubernetes.io")
}

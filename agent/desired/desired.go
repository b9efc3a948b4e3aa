// Package desired is what the sources of pods and the node agree on: [Update] is the one value that crosses between
// them, and [Origin] says where it comes from. What else can be told from a pod alone is here too: which objects it
// refers to ([Refs]), which pods it starts after ([After]), and what of it this version does not support
// ([Unsupported]).
package desired

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/object"
)

// Update is the latest desired pod of a key, or its removal; or the latest of an object that pods may refer to. Both
// are shared and must not be written to. Objects come before the pods that the same files hold.
type Update struct {
	Kind   object.Kind // of Key; "" is a pod's too
	Key    types.NamespacedName
	Pod    *corev1.Pod   // nil: removed
	Object object.Object // nil: removed
	Origin Origin        // "" of what no file or URL has any more; [API] also of what an API server has removed
	File   string        // that asks for it, or the URL
	Listed bool          // every object of the Kind there was has been told, see [object.Store.Expect]; without a key
	Synced bool          // every origin was read once; comes once, without a key
}

// Ref names what the update is of.
func (u *Update) Ref() object.Ref { return object.Ref{Kind: u.Kind, NamespacedName: u.Key} }

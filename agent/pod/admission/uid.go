package admission

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// UID has a pod wait whose uid is that of a pod of another name, as in a manifest that was copied with it: a pod's
// directory, its cgroup and its containers are found by the uid, and the two would be one. holder is who has it, if
// somebody has.
func UID(holder func(*Request) (types.NamespacedName, bool)) Check {
	return func(r *Request) *Verdict {
		other, ok := holder(r)
		if !ok {
			return nil
		}
		return waits("UIDInUse", fmt.Sprintf("its uid %s is that of pod %s, which is here: give it another metadata.uid, or none",
			r.Pod.UID, other))
	}
}

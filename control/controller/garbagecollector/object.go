package garbagecollector

import (
	"slices"
	"strconv"
	"strings"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// place is where an object is: what a reference says of it beside its UID. There are many objects and few kinds and
// namespaces, so those are kept once.
type place struct {
	kind      unique.Handle[schema.GroupKind]
	namespace unique.Handle[string]
	name      string
}

// thing is one object, of all times.
type thing struct {
	place
	uid types.UID
}

// owner is a reference to an owner. Its namespace is that of the dependent, or none if its kind has none.
type owner struct {
	kind   unique.Handle[schema.GroupKind]
	name   string
	uid    types.UID
	blocks bool
}

// object is what the collector knows of an object.
type object struct {
	thing
	version    uint64
	owners     []owner
	deleting   bool
	foreground bool // it waits for its dependents
	orphans    bool // it is to leave its dependents alone
}

func inOrder(all []thing) {
	slices.SortFunc(all, func(a, b thing) int { return strings.Compare(string(a.uid), string(b.uid)) })
}

var none = unique.Make("")

// objectOf is what the collector keeps of an object's metadata.
func objectOf(kind unique.Handle[schema.GroupKind], m metav1.Object) object {
	// A version that cannot be read is older than none.
	version, _ := strconv.ParseUint(m.GetResourceVersion(), 10, 64)
	o := object{
		thing:   thing{place{kind, unique.Make(m.GetNamespace()), m.GetName()}, m.GetUID()},
		version: version, deleting: m.GetDeletionTimestamp() != nil,
		foreground: slices.Contains(m.GetFinalizers(), metav1.FinalizerDeleteDependents),
		orphans:    slices.Contains(m.GetFinalizers(), metav1.FinalizerOrphanDependents),
	}
	for _, r := range m.GetOwnerReferences() {
		o.owners = append(o.owners, owner{unique.Make(groupKind(r)), r.Name, r.UID, r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion})
	}
	return o
}

func groupKind(r metav1.OwnerReference) schema.GroupKind {
	group, _, has := strings.Cut(r.APIVersion, "/")
	if !has {
		group = ""
	}
	return schema.GroupKind{Group: group, Kind: r.Kind}
}

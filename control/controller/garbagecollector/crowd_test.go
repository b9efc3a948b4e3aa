package garbagecollector

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
)

// counted is a world that counts what is read of it.
type counted struct {
	*world
	reads int
}

func (c *counted) get(ctx context.Context, p place) (*metav1.PartialObjectMetadata, error) {
	c.reads++
	return c.world.get(ctx, p)
}

// TestManyReferences has an object refer to as many owners as fit into it: to one by ten thousand UIDs, to ten thousand
// that are not, and to some of a kind that is not served. No look reads an owner twice, one that cannot decide anything
// reads none, and what is known not to be is not read again.
func TestManyReferences(t *testing.T) {
	const n = 10_000
	ref := func(name, uid string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: "A", Name: name, UID: types.UID(uid)}
	}
	unserved := metav1.OwnerReference{APIVersion: "v1", Kind: "None", Name: "x", UID: "x"}
	var one, absent []metav1.OwnerReference
	for i := range n {
		one = append(one, ref("owner", fmt.Sprint("u", i)))
		absent = append(absent, ref(fmt.Sprint("o", i), fmt.Sprint("a", i)))
	}
	for _, c := range []struct {
		name         string
		refs         []metav1.OwnerReference
		first, again int
		unserved     bool
	}{
		{"one", one, 3, 3, false}, // itself, and two owners
		{"absent", absent, n + 2, 2, false},
		{"unserved", append(slices.Clip(absent), unserved), 1, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &counted{world: newWorld(rand.New(rand.NewPCG(1, 1)))}
			add := func(name string, uid types.UID, refs []metav1.OwnerReference) object {
				m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: uid, OwnerReferences: refs}}
				w.objects[uid], w.kinds[uid] = m, sorts[1]
				w.places[w.placeOf(m)] = uid
				w.wrote(m)
				return objectOf(sorts[1], m)
			}
			k := newCollector(newGraph(), w, func(types.UID) {})
			add("owner", "u7", nil)
			add("solid", "s", nil)
			k.graph.observe(add("d", "d", append(slices.Clip(c.refs), ref("solid", "s"))))
			look := func() int {
				w.reads = 0
				live, err := w.get(t.Context(), place{sorts[1], unique.Make("x"), "d"})
				if err != nil {
					t.Fatal(err)
				}
				if refs, err := k.classify(t.Context(), objectOf(sorts[1], live), live.OwnerReferences); err != nil || refs.unserved != c.unserved {
					t.Fatal(refs.unserved, err)
				}
				return w.reads
			}
			if first, again := look(), look(); first > c.first || again > c.again {
				t.Errorf("%d and %d are read", first, again)
			}
		})
	}
}

// tardy is a world where a kind is served later than others refer to it.
type tardy struct {
	*world
	served bool
}

func (l *tardy) kind(k schema.GroupKind) (namespaced, served bool) {
	if k.Kind == "None" {
		return true, l.served
	}
	return l.world.kind(k)
}

// TestUnserved has an object refer to thousands of owners of a kind that is not served: none of them is tried again,
// until there is the kind.
func TestUnserved(t *testing.T) {
	w := &tardy{world: newWorld(rand.New(rand.NewPCG(1, 1)))}
	k := newCollector(newGraph(), w, func(types.UID) {})
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "d", UID: "d"}}
	for i := range 1000 {
		m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "None", Name: "o", UID: types.UID(fmt.Sprint("o", i))})
	}
	w.objects["d"], w.kinds["d"] = m, sorts[1]
	w.places[w.placeOf(m)] = "d"
	w.wrote(m)
	all := append(k.graph.observe(objectOf(sorts[1], m)), "d")
	if len(all) != 1001 {
		t.Fatalf("%d are looked at", len(all))
	}
	for _, uid := range all {
		if again, err := k.sync(t.Context(), uid); err != nil || again != 0 {
			t.Fatalf("%s is looked at after %s again, %v", uid, again, err)
		}
	}
	none := schema.GroupKind{Kind: "None"}
	if n := len(k.graph.of(map[schema.GroupKind]bool{{Kind: "Other"}: true})); n > 0 {
		t.Errorf("%d are looked at for another kind", n)
	}
	w.served = true
	all = k.graph.of(map[schema.GroupKind]bool{none: true})
	if len(all) != 1001 {
		t.Errorf("%d are looked at when there is the kind", len(all))
	}
	for _, uid := range all {
		if _, err := k.sync(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.objects) > 0 {
		t.Error("an object is there whose owners are not")
	}
}

// offers is a server with some kinds.
type offers struct {
	discovery.ServerResourcesInterface
	kinds []string
}

func (o *offers) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	list := &metav1.APIResourceList{GroupVersion: "v1"}
	for _, k := range o.kinds {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: k + "s", Kind: k, Verbs: []string{"get", "list", "watch", "delete"}})
	}
	return []*metav1.APIResourceList{list}, nil
}

// TestLearn has kinds come, go and come again.
func TestLearn(t *testing.T) {
	k := &kinds{}
	for i, c := range []struct{ there, fresh []string }{
		{[]string{"A", "B"}, []string{"A", "B"}}, {[]string{"A", "B"}, nil}, {[]string{"A"}, nil}, {[]string{"A", "B", "C"}, []string{"B", "C"}},
	} {
		fresh, err := k.learn(&offers{kinds: c.there})
		if err != nil {
			t.Fatal(err)
		}
		ok := len(fresh) == len(c.fresh)
		for _, name := range c.fresh {
			ok = ok && fresh[schema.GroupKind{Kind: name}]
		}
		if !ok {
			t.Errorf("%d: new are %v, not %v", i, fresh, c.fresh)
		}
	}
}

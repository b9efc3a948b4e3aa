package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
		fails        error
	}{
		{"one", one, 3, 3, nil}, // itself, and two owners
		{"absent", absent, n + 2, 2, nil},
		{"unserved", append(slices.Clip(absent), unserved), 1, 1, errUnknown},
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
				if _, err := k.classify(t.Context(), objectOf(sorts[1], live), live.OwnerReferences); !errors.Is(err, c.fails) {
					t.Fatal(err)
				}
				return w.reads
			}
			if first, again := look(), look(); first > c.first || again > c.again {
				t.Errorf("%d and %d are read", first, again)
			}
		})
	}
}

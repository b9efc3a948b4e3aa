package pod

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/admission"
)

// TestTally has pods come, end, begin again and go in random order, and compares the sum with one that is worked out.
func TestTally(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	all := newTally()
	over := map[*worker]bool{}
	var here []*worker
	for i := range 2000 {
		switch what := random.IntN(4); {
		case what == 0 || len(here) == 0:
			w := withCPU(fmt.Sprint(i), fmt.Sprintf("%dm", random.IntN(3000)))
			here = append(here, w)
			over[w] = random.IntN(4) == 0
			all.put(w, !over[w])
		case what == 1:
			at := random.IntN(len(here))
			w := here[at]
			all.tell(w, true)
			all.forget(w)
			here = append(here[:at], here[at+1:]...)
			delete(over, w)
			if random.IntN(8) == 0 {
				all.tell(w, false) // nobody knows it any more
			}
		default:
			w := here[random.IntN(len(here))]
			over[w] = !over[w]
			all.tell(w, over[w])
		}
		if random.IntN(3) > 0 {
			continue
		}
		all.refresh()
		want := admission.Sum{}
		for _, w := range here {
			if all.of[w] == over[w] {
				t.Fatalf("after %d changes %s is over: %t, and in the sum: %t", i, w.uid, over[w], all.of[w])
			}
			if !over[w] {
				want.Add(w.share)
			}
		}
		if !all.sum.Equal(&want) {
			t.Fatalf("after %d changes the sum is %+v, not %+v", i, all.sum, want)
		}
	}
	for _, w := range here {
		all.forget(w)
	}
	if len(all.of) > 0 || !all.sum.Equal(&admission.Sum{}) {
		t.Errorf("%+v is left of nobody", all.sum)
	}
}

func withCPU(uid, cpu string) *worker {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
	}}}}}
	return &worker{uid: types.UID(uid), share: admission.ShareOf(pod)}
}

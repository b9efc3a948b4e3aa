package inspect

import (
	"cmp"
	"slices"
	"testing"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// byUsage is an order of these tests: who has more above its request goes first.
func byUsage(pods []Pod) []Place {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(b.Usage-b.Request, a.Usage-a.Request), cmp.Compare(a.Name, b.Name))
	})
	var out []Place
	number := 0
	for i, p := range pods {
		place := Place{Pod: p}
		if !p.Protected {
			number++
			place.Number = number
			if i+1 < len(pods) {
				place.Before = "it has more than " + pods[i+1].Namespace + "/" + pods[i+1].Name
			}
		}
		out = append(out, place)
	}
	return out
}

// What counts of a pod's memory is what counts for the agent.
func TestEvictedFor(t *testing.T) {
	m := &cgroups.Memory{Usage: 100, InactiveFile: 20, ActiveFile: 30, WorkingSet: 80, Swap: 7}
	for rules, want := range map[kube.Evicts]uint64{
		{WorkingSet: true}: 80, {WorkingSet: true, SparesStatic: true}: 80, {}: 50, {Swap: true}: 57,
	} {
		if got := evictedFor(m, &rules); got != want {
			t.Errorf("%+v: %d, want %d", rules, got, want)
		}
	}
}

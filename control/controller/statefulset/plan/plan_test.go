package plan

import (
	"math"
	"reflect"
	"testing"
)

// good is a pod that is available.
func good(ordinal int, revision string) Pod {
	return Pod{Ordinal: ordinal, Revision: revision, Created: true, Ready: true, Available: true}
}

// TestNext has what is next in some states that people come across.
func TestNext(t *testing.T) {
	set := func(f func(*Set)) Set {
		s := Set{Replicas: 3, MaxUnavailable: 1, Current: "a", Update: "b"}
		f(&s)
		return s
	}
	with := func(p Pod, f func(*Pod)) Pod { f(&p); return p }
	ordered, parallel := set(func(*Set) {}), set(func(s *Set) { s.Parallel = true })
	for name, c := range map[string]struct {
		set  Set
		pods []Pod
		want []Step
	}{
		"the first one":           {ordered, nil, []Step{{Create, 0, "b"}}},
		"all at once":             {parallel, nil, []Step{{Create, 0, "b"}, {Create, 1, "b"}, {Create, 2, "b"}}},
		"waits for the first one": {ordered, []Pod{with(good(0, "b"), func(p *Pod) { p.Available = false })}, nil},
		"the gap":                 {ordered, []Pod{good(0, "b"), good(2, "b")}, []Step{{Create, 1, "b"}}},
		"below the partition": {
			set(func(s *Set) { s.Partition = 2 }), []Pod{good(1, "a"), good(2, "b")}, []Step{{Create, 0, "a"}},
		},
		"a failed one":      {ordered, []Pod{good(0, "b"), with(good(1, "b"), func(p *Pod) { p.Finished = true })}, []Step{{Delete, 1, ""}}},
		"the highest first": {set(func(s *Set) { s.Replicas = 1 }), []Pod{good(0, "b"), good(1, "b"), good(2, "b")}, []Step{{Delete, 2, ""}}},
		"one that is not wanted, and holds up nobody": {
			set(func(s *Set) { s.Replicas = 1 }), []Pod{good(0, "b"), with(good(1, "b"), func(p *Pod) { p.Available = false })}, []Step{{Delete, 1, ""}},
		},
		"one below holds it up": {
			set(func(s *Set) { s.Replicas = 1 }),
			[]Pod{good(0, "b"), with(good(1, "b"), func(p *Pod) { p.Available = false }), with(good(2, "b"), func(p *Pod) { p.Available = false })},
			nil,
		},
		"an update":         {ordered, []Pod{good(0, "a"), good(1, "a"), good(2, "a")}, []Step{{Delete, 2, ""}}},
		"the next of it":    {ordered, []Pod{good(0, "a"), good(1, "a"), good(2, "b")}, []Step{{Delete, 1, ""}}},
		"two at a time":     {set(func(s *Set) { s.MaxUnavailable = 2 }), []Pod{good(0, "a"), good(1, "a"), good(2, "a")}, []Step{{Delete, 2, ""}, {Delete, 1, ""}}},
		"by somebody else":  {set(func(s *Set) { s.OnDelete = true }), []Pod{good(0, "a"), good(1, "a"), good(2, "a")}, nil},
		"the set ends":      {set(func(s *Set) { s.Ending = true }), nil, nil},
		"other numbers":     {set(func(s *Set) { s.Start = 1 }), []Pod{good(0, "b"), good(1, "b"), good(2, "b")}, []Step{{Create, 3, "b"}}},
		"the old numbers":   {set(func(s *Set) { s.Start = 1 }), []Pod{good(0, "b"), good(1, "b"), good(2, "b"), good(3, "b")}, []Step{{Delete, 0, ""}}},
		"a claim that goes": {set(func(s *Set) { s.Replicas = 0 }), []Pod{with(good(0, "b"), func(p *Pod) { p.Broken = true })}, []Step{{Repair, 0, ""}, {Delete, 0, ""}}},
	} {
		if got := Next(c.set, c.pods); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, not %v", name, got, c.want)
		}
	}
}

// TestMany has a set that asks for more pods than there can be cost no more than the pods that there are, and get some
// of them at each look.
func TestMany(t *testing.T) {
	s := Set{Start: math.MaxInt32, Replicas: math.MaxInt32, Parallel: true, MaxUnavailable: 1, Current: "b", Update: "b"}
	var pods []Pod
	for range 3 {
		steps := Next(s, pods)
		if len(steps) != burst {
			t.Fatalf("%d steps are taken at once", len(steps))
		}
		for i, step := range steps {
			if want := (Step{Create, s.Start + len(pods), "b"}); step != want {
				t.Fatalf("step %d is %v, not %v", i, step, want)
			}
			pods = append(pods, good(step.Ordinal, "b"))
		}
	}
}

// TestCount has a set be at the revision of now when all its pods are.
func TestCount(t *testing.T) {
	s := Set{Replicas: 2, Current: "a", Update: "b"}
	half := Count(s, []Pod{good(0, "a"), good(1, "b")})
	if half != (Status{Replicas: 2, Ready: 2, Available: 2, Current: 1, Updated: 1, CurrentRevision: "a"}) {
		t.Errorf("half of it is %+v", half)
	}
	if all := Count(s, []Pod{good(0, "b"), good(1, "b")}); all.CurrentRevision != "b" || all.Current != 2 {
		t.Errorf("all of it is %+v", all)
	}
}

package main

import (
	"reflect"
	"slices"
	"testing"

	"github.com/opencontainers/cgroups"
)

// TestHierarchies: they are those that the whole list of mounts has.
func TestHierarchies(t *testing.T) {
	if cgroups.IsCgroup2UnifiedMode() {
		t.Skip("there is no cgroup v1")
	}
	got, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	want, err := cgroups.GetCgroupMounts(false)
	if err != nil {
		t.Fatal(err)
	}
	for _, all := range [][]cgroups.Mount{got, want} {
		for _, m := range all {
			slices.Sort(m.Subsystems)
		}
	}
	if len(want) == 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("they are %+v, and not %+v", got, want)
	}
}

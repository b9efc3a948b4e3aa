package inspect

import "testing"

// TestNameBeforeID: a container is found by its name, also where the id of another one in the pod begins so.
func TestNameBeforeID(t *testing.T) {
	t.Parallel()
	snap := &Snapshot{}
	sandbox, c := &Node{Kind: kindContainer, Title: "(sandbox)", ID: "c4aca14f", snap: snap}, &Node{Kind: kindContainer, Title: "c", ID: "d65e9778", snap: snap}
	f := forest{{Kind: kindPod, Title: "default/own", snap: snap, Children: []*Node{sandbox, c}}}
	for what, want := range map[string]*Node{"own/c": c, "own/c4": sandbox, "own/d65e9778": c} {
		if got, err := f.lookup(what); got != want {
			t.Errorf("%s is %+v, %v", what, got, err)
		}
	}
}

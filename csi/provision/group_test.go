package provision

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi/csitest"
)

func groupOf(name string, members ...string) Claim {
	return Claim{Ref: Ref{"default", name}, UID: "uid-" + name, Class: Class{Name: "together", Driver: "csitest.berth.node"}, Members: members}
}

func (h *house) wantAll(volumes []Claim, groups ...Claim) {
	h.m.Want(volumes, nil, groups)
	h.quiet()
}

func (h *house) group(name string) State {
	h.t.Helper()
	return h.state(Group, name)
}

func (h *house) groups(groups, snapshots int) {
	h.t.Helper()
	if s := h.driver.State(); len(s.Groups) != groups || len(s.Snapshots) != snapshots {
		h.t.Fatalf("the driver has %d group snapshots and %d snapshots, and should have %d and %d", len(s.Groups), len(s.Snapshots), groups, snapshots)
	}
}

// TestGroups has snapshots of two claims be made at one moment, a claim be restored of one of them, and the group go
// after its grace, with all that it has.
func TestGroups(t *testing.T) {
	h := newHouse(t, csitest.Options{SnapshotCalls: 1})
	two := []Claim{claim("a"), claim("b")}
	h.want(two, nil)
	file := filepath.Join(h.driver.Data("v-pvc-uid-b"), "precious")
	if err := os.WriteFile(file, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.told()
	h.wantAll(two, groupOf("g", "a", "b"))
	h.pass(6 * time.Second)
	g := h.group("g")
	want := []Member{
		{"a", "v-pvc-uid-a", "s-groupsnapshot-uid-g-v-pvc-uid-a", 1 << 20}, {"b", "v-pvc-uid-b", "s-groupsnapshot-uid-g-v-pvc-uid-b", 1 << 20},
	}
	if !g.Ready || g.Handle != "g-groupsnapshot-uid-g" || g.Created.IsZero() || !slices.Equal(g.Members, want) {
		t.Fatalf("got %+v", g)
	}
	h.tells("default/g GroupSnapshotCreated", "default/g GroupSnapshotReady")
	if err := os.WriteFile(file, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	restored := claim("r")
	restored.Source.Snapshot = MemberName("g", "b")
	// What it is of was decided when it was made.
	h.wantAll(append(two, restored), groupOf("g", "a"))
	if data, err := os.ReadFile(filepath.Join(h.driver.Data("v-pvc-uid-r"), "precious")); err != nil || string(data) != "first" {
		t.Errorf("what was restored has %q, %v", data, err)
	}
	h.groups(1, 2)
	// A manifest that names one of its snapshots keeps all of them.
	h.m.Want(two, nil, nil, Handle{Snapshot, "csitest.berth.node", want[0].Handle})
	h.pass(61 * time.Minute)
	h.groups(1, 2)
	if g := h.group("g"); !strings.Contains(g.Error, "is in a manifest by its handle") {
		t.Errorf("got %+v", g)
	}
	h.wantAll(two)
	h.pass(59 * time.Minute)
	h.groups(1, 2)
	h.pass(2 * time.Minute)
	h.groups(0, 0)
}

// TestGroupDecided has a group snapshot whose manifest is gone be kept, and then be deleted at once.
func TestGroupDecided(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.wantAll([]Claim{claim("a")}, groupOf("g", "a"))
	h.settle() // the volume was not there yet
	h.wantAll([]Claim{claim("a")})
	if err := h.m.Keep(Group, Ref{"default", "g"}); err != nil {
		t.Fatal(err)
	}
	h.pass(61 * time.Minute)
	h.groups(1, 1)
	if err := h.m.Delete(Group, Ref{"default", "g"}); err != nil {
		t.Fatal(err)
	}
	h.settle()
	h.groups(0, 0)
}

// TestGroupUncertain has the agent end after a call whose end it does not know: the same call is made again, though the
// labels of claims are others by then, and one that is not wanted any more is found and deleted.
func TestGroupUncertain(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		h := newHouse(t, csitest.Options{})
		two := []Claim{claim("a"), claim("b")}
		h.want(two, nil)
		h.driver.Faults.Inject(csitest.Fault{RPC: "CreateVolumeGroupSnapshot", When: csitest.After, Code: codes.Unavailable})
		h.wantAll(two, groupOf("g", "a", "b"))
		h.groups(1, 2)
		if g := h.group("g"); g.Handle != "" || g.Error == "" {
			t.Fatalf("got %+v", g)
		}
		h.stop()
		h.open()
		if wanted {
			h.wantAll(two, groupOf("g", "b"))
			if g := h.group("g"); !g.Ready || len(g.Members) != 2 {
				t.Errorf("got %+v", g)
			}
			continue
		}
		h.wantAll(two)
		h.pass(61 * time.Minute)
		h.groups(0, 0)
	}
}

// TestGroupRefused says of group snapshots that cannot be made why.
func TestGroupRefused(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	waits := claim("w")
	waits.Waits = true
	h.want([]Claim{claim("a"), waits}, nil)
	other := groupOf("other", "a")
	other.Class.Driver = "other.berth.node"
	h.wantAll([]Claim{claim("a"), waits}, groupOf("none"), groupOf("lost", "a", "l"), groupOf("waits", "w"), other)
	h.drivers.Deregister(h.driver.Options().Name, h.driver.Options().Socket)
	for name, want := range map[string]string{
		"none": "its selector has 0 claims", "lost": "volume default/l: there is none", "waits": "volume default/w is not ready", "other": "not registered",
	} {
		if g := h.group(name); !strings.Contains(g.Error, want) {
			t.Errorf("%s: %q", name, g.Error)
		}
	}
	h.wantAll(nil)
	if files, err := os.ReadDir(h.dir); err != nil || len(files) != 1 {
		t.Errorf("what was never made has records: %v, %v", files, err)
	}
}

// TestTakeMembers holds what a driver says that it has made to what was asked for.
func TestTakeMembers(t *testing.T) {
	of := func(id, volume string) *spec.Snapshot {
		return &spec.Snapshot{SnapshotId: id, SourceVolumeId: volume, ReadyToUse: true, SizeBytes: 5}
	}
	for name, one := range map[string]struct {
		all  []*spec.Snapshot
		want string
	}{
		"good":       {[]*spec.Snapshot{of("2", "b"), of("1", "a")}, ""},
		"too few":    {[]*spec.Snapshot{of("1", "a")}, "1 snapshots of 2"},
		"too many":   {[]*spec.Snapshot{of("1", "a"), of("2", "b"), of("3", "c")}, "3 snapshots of 2"},
		"other":      {[]*spec.Snapshot{of("1", "a"), of("2", "c")}, "was not asked for"},
		"twice":      {[]*spec.Snapshot{of("1", "a"), of("2", "a")}, "twice"},
		"same":       {[]*spec.Snapshot{of("1", "a"), of("1", "b")}, "twice"},
		"without ID": {[]*spec.Snapshot{of("", "a"), of("1", "b")}, "an ID of 0 bytes"},
		"long ID":    {[]*spec.Snapshot{of(strings.Repeat("x", maxHandle+1), "a"), of("1", "b")}, "an ID of 4097 bytes"},
		"nothing":    {[]*spec.Snapshot{nil, nil}, "an ID of 0 bytes"},
	} {
		r := &record{Kind: Group, Handle: "g", Ready: true, Members: []Member{{Claim: "a", Volume: "a"}, {Claim: "b", Volume: "b"}}}
		before := r.Members
		err := r.takeMembers(one.all)
		if err == nil {
			err = errors.New("")
		}
		switch good := one.want == ""; {
		case good != (err.Error() == "") || !strings.Contains(err.Error(), one.want):
			t.Errorf("%s: %v", name, err)
		case r.made() != good || r.Ready != good || good && (r.Members[1].Handle != "2" || r.Members[0].Bytes != 5) || before[0].Handle != "":
			t.Errorf("%s: got %+v", name, r)
		}
	}
}

// TestSeveralMembers wants a name that two group snapshots have for one of theirs to be nobody's.
func TestSeveralMembers(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	volumes := []Claim{claim("c"), claim("b-c")}
	h.want(volumes, nil)
	h.wantAll(volumes, groupOf("a-b", "c"), groupOf("a", "b-c"))
	restored := claim("r")
	restored.Source.Snapshot = "a-b-c"
	h.wantAll(append(volumes, restored), groupOf("a-b", "c"), groupOf("a", "b-c"))
	if s := h.volume("r"); !strings.Contains(s.Error, "several group snapshots") {
		t.Errorf("got %+v", s)
	}
}

package provision

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-node/berth/csi/csitest"
)

// long is more than the grace.
const long = 2 * time.Hour

// TestHeld wants a volume to stay whose claim is there, though nothing would be made for it now: its class is gone, or
// it names a volume.
func TestHeld(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	held, pending := claim("a"), claim("b")
	held.Held, pending.Held = true, true
	held.Class, pending.Class = Class{}, Class{}
	h.want([]Claim{claim("a")}, nil)
	h.want([]Claim{held, pending}, nil)
	h.pass(long)
	h.volumes("v-pvc-uid-a")
	if s := h.volume("a"); s.Missing || !s.Ready || len(h.m.List()) != 1 {
		t.Fatalf("got %+v", h.m.List())
	}
	h.want(nil, nil)
	h.pass(30 * time.Minute)
	h.stop() // the claim is back, and its class is not
	h.open()
	h.want([]Claim{held}, nil)
	if s := h.volume("a"); s.Missing || s.Left != 0 {
		t.Fatalf("got %+v", s)
	}
	h.want(nil, nil)
	h.pass(long)
	h.volumes()
}

// TestOtherNode wants a claim to have its volume though the node has got another name, from which UIDs of claims are
// made.
func TestOtherNode(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	h.stop()
	h.open()
	other := claim("a")
	other.UID = "uid-elsewhere"
	h.want([]Claim{other}, nil)
	h.pass(long)
	h.volumes("v-pvc-uid-a")
	if s := h.volume("a"); !s.Ready || s.Handle != "v-pvc-uid-a" || s.Missing {
		t.Errorf("got %+v", s)
	}
}

// TestOtherClass wants what another class says not to count for a volume: not that it is to be deleted, either.
func TestOtherClass(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	c := claim("a")
	c.Class.Retain = true
	h.want([]Claim{c}, nil)
	other := claim("a")
	other.Class.Name = "other"
	h.want([]Claim{other}, nil)
	h.want(nil, nil)
	h.pass(long)
	h.volumes("v-pvc-uid-a")
}

// TestNamedElsewhere wants a volume to stay that a manifest has by its handle, whoever it was made for.
func TestNamedElsewhere(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	of := Handle{Volume, claim("a").Class.Driver, "v-pvc-uid-a"}
	h.m.Want(nil, nil, nil, of)
	h.pass(long)
	h.volumes("v-pvc-uid-a")
	if err := h.m.Delete(Volume, Ref{"default", "a"}); err != nil {
		t.Fatal(err)
	}
	h.settle()
	h.volumes("v-pvc-uid-a")
	if s := h.volume("a"); !strings.Contains(s.Error, "in a manifest by its handle") {
		t.Errorf("got %+v", s)
	}
	h.want(nil, nil)
	h.pass(look)
	h.volumes()
}

// TestUnreadableUsers wants nothing to be deleted of which it is not known who uses it.
func TestUnreadableUsers(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	h.mu.Lock()
	h.unreadable = errors.New("the record is of a later version")
	h.mu.Unlock()
	h.want(nil, nil)
	h.pass(long)
	h.volumes("v-pvc-uid-a")
	if s := h.volume("a"); !strings.Contains(s.Error, "later version") {
		t.Errorf("got %+v", s)
	}
}

// TestFoundAgain wants the volume of a claim whose record is lost to be found, and never to be deleted when it is not
// as asked for now: it was made larger than the claim's limit.
func TestFoundAgain(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{c2("a", 4<<20)}, nil)
	h.stop()
	if err := os.Remove(filepath.Join(h.dir, "pvc-uid-a.json")); err != nil {
		t.Fatal(err)
	}
	h.open()
	limited := claim("a")
	limited.Limit = 2 << 20
	h.want([]Claim{limited}, nil)
	h.settle()
	h.volumes("v-pvc-uid-a")
	if s := h.volume("a"); s.Ready || !strings.Contains(s.Error, "at most 2097152 were asked for") {
		t.Fatalf("got %+v", s)
	}
	h.want([]Claim{claim("a")}, nil)
	if s := h.volume("a"); !s.Ready || s.Bytes != 4<<20 {
		t.Fatalf("got %+v", s)
	}
	h.want(nil, nil)
	h.pass(long)
	h.volumes()
}

// TestLaterRecord wants a record that another version has written not to be written over, and nothing to be called by
// it.
func TestLaterRecord(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.stop()
	path := filepath.Join(h.dir, "pvc-uid-a.json")
	if err := os.WriteFile(path, []byte(`{"version":9}`), 0o600); err != nil {
		t.Fatal(err)
	}
	h.open()
	h.want([]Claim{claim("a")}, nil)
	h.volumes()
	if data, err := os.ReadFile(path); err != nil || string(data) != `{"version":9}` {
		t.Errorf("%q, %v", data, err)
	}
	if s := h.volume("a"); !strings.Contains(s.Error, "later version") {
		t.Errorf("got %+v", s)
	}
}

// TestTooEarly wants nothing to be decided about claims of which it is not known whether they are there.
func TestTooEarly(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	h.stop()
	h.open()
	if err := h.m.Delete(Volume, Ref{"default", "a"}); err == nil {
		t.Error("it is deleted before manifests are read")
	}
	h.want([]Claim{claim("a")}, nil)
	h.volumes("v-pvc-uid-a")
}

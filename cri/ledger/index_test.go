package ledger

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-node/berth/cri/fault"
)

func TestIndexFindsByPrefix(t *testing.T) {
	x := NewIndex[string]("thing")
	a, b := strings.Repeat("a", 64), "ab"+strings.Repeat("c", 62)
	x.Put(a, "first")
	x.Put(b, "second")
	for id, want := range map[string]string{a: "first", "aa": "first", "ab": "second", b: "second"} {
		if got, err := x.Get(id); err != nil || got != want {
			t.Errorf("%s: got %q, %v", id, got, err)
		}
	}
	for _, id := range []string{"", "a", "b", a + "a", "ac"} {
		if got, err := x.Get(id); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("%q: got %q, %v", id, got, err)
		}
	}
	if _, ok := x.Exact("aa"); ok {
		t.Error("a prefix was taken for an ID")
	}
	x.Delete(b)
	if got, err := x.Get("a"); err != nil || got != "first" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestNamesAreOneIDs(t *testing.T) {
	var n Names
	if err := errors.Join(n.Reserve("web", "1"), n.Reserve("web", "1")); err != nil {
		t.Fatal(err)
	}
	if err := n.Reserve("web", "2"); !errors.Is(err, fault.ErrExists) {
		t.Errorf("got %v", err)
	}
	n.Release("2")
	if err := n.Reserve("web", "2"); !errors.Is(err, fault.ErrExists) {
		t.Errorf("somebody else gave the name back: %v", err)
	}
	n.Release("1")
	if err := n.Reserve("web", "2"); err != nil {
		t.Error(err)
	}
}

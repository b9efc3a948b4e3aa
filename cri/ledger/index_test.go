package ledger

import (
	"errors"
	"slices"
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

func TestIndexFindsByMark(t *testing.T) {
	x := NewMarked("thing", func(s string) string { mark, _, _ := strings.Cut(s, "/"); return mark })
	all := func(string) bool { return true }
	for id, v := range map[string]string{"1": "a/1", "2": "b/2", "3": "a/3", "4": "/4"} {
		x.Put(id, v)
	}
	check := func(mark string, want ...string) {
		t.Helper()
		if got := x.MatchMarked(mark, all, strings.Compare); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", mark, got, want)
		}
	}
	check("a", "a/1", "a/3")
	check("b", "b/2")
	check("c")
	x.Put("3", "b/3")
	x.Delete("1")
	x.Delete("1")
	check("a")
	check("b", "b/2", "b/3")
	if got := x.All(strings.Compare); len(got) != 3 {
		t.Errorf("all are %q", got)
	}
	if len(x.marked) != 1 {
		t.Errorf("marks are kept that nothing has: %v", x.marked)
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

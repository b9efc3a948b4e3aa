package etcd

import (
	"slices"
	"testing"
	"time"
)

func copyAt(text string, revision int64) copied {
	at, err := time.Parse(copyTime, text)
	if err != nil {
		return copied{}
	}
	return copied{at, revision}
}

func TestCopyNames(t *testing.T) {
	c := copyAt("20261123T010203Z", 123)
	if c.name() != "20261123T010203Z-r123.db" {
		t.Errorf("the name is %q", c.name())
	}
	if got, ok := parseCopy(c.name()); !ok || got != c {
		t.Errorf("read again: %v, %t", got, ok)
	}
	for _, foreign := range []string{
		"", "a.db", "20261123T010203Z-r123.db.new", "20261123T010203Z-r123.db~", "20261123T010203Z-r0123.db", "20261323T010203Z-r1.db",
		"20261123T010203Z-r9999999999999999999.db", "x20261123T010203Z-r1.db", "20261123T010203Z-r1.DB", "20261123T010203Z-r-1.db",
	} {
		if got, ok := parseCopy(foreign); ok {
			t.Errorf("%q is %v", foreign, got)
		}
	}
}

func TestPolicy(t *testing.T) {
	now := copyAt("20261123T120000Z", 0).at
	old, young, ahead := copyAt("20261123T010000Z", 10), copyAt("20261123T110000Z", 20), copyAt("20271123T110000Z", 5)
	const interval = 6 * time.Hour
	for _, c := range []struct {
		name     string
		all      []copied
		due      time.Duration
		revision int64
		wanted   bool
		surplus  []copied // of one that is kept
	}{
		{"none, and nothing to copy", nil, 0, 1, false, nil},
		{"none", nil, 0, 2, true, nil},
		{"an old one", []copied{old}, 0, 11, true, nil},
		{"an old one of all there is", []copied{old}, 0, 10, false, nil},
		{"a young one", []copied{young, old}, 5 * time.Hour, 21, true, []copied{old}},
		{"revisions went back", []copied{young, old}, 5 * time.Hour, 10, true, []copied{old}},
		{"the clock was set back", []copied{ahead, old, young}, 5 * time.Hour, 5, true, []copied{ahead, old}},
		{"the clock was set back, and none since", []copied{ahead}, 0, 6, true, nil},
		{"two of one second", []copied{copyAt("20261123T110000Z", 21), young}, 5 * time.Hour, 21, false, []copied{young}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := due(c.all, now, interval); got != c.due {
				t.Errorf("due in %s, not %s", got, c.due)
			}
			if got := wanted(c.all, now, c.revision); got != c.wanted {
				t.Errorf("wanted: %t", got)
			}
			if got := surplus(c.all, now, 1); !slices.Equal(got, c.surplus) {
				t.Errorf("surplus: %v, not %v", got, c.surplus)
			}
			if got := surplus(c.all, now, len(c.all)+1); len(got) > 0 {
				t.Errorf("surplus of fewer than are kept: %v", got)
			}
		})
	}
}

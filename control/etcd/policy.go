package etcd

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// copyTime is how a copy's name has the time, in UTC.
const copyTime = "20060102T150405Z"

// copied is a copy of the store, as its name tells of it.
type copied struct {
	at       time.Time
	revision int64
}

// name is the copy's file.
func (c copied) name() string {
	return fmt.Sprintf("%s-r%d.db", c.at.UTC().Format(copyTime), c.revision)
}

// parseCopy reads a name. Only what has exactly the form of ours is a copy.
func parseCopy(name string) (copied, bool) {
	m := regexp.MustCompile(`^(\d{8}T\d{6}Z)-r(\d{1,19})\.db$`).FindStringSubmatch(name)
	if m == nil {
		return copied{}, false
	}
	at, err := time.Parse(copyTime, m[1])
	if err != nil {
		return copied{}, false
	}
	revision, err := strconv.ParseInt(m[2], 10, 64)
	c := copied{at, revision}
	return c, err == nil && c.name() == name
}

// order sorts copies, the oldest first. One whose time is still to come was made before the clock was set back, and so
// before all others.
func order(all []copied, now time.Time) []copied {
	ahead := func(c copied) int {
		if c.at.After(now) {
			return 0
		}
		return 1
	}
	return slices.SortedFunc(slices.Values(all), func(a, b copied) int {
		return cmp.Or(cmp.Compare(ahead(a), ahead(b)), a.at.Compare(b.at), cmp.Compare(a.revision, b.revision))
	})
}

// due is how long it is until the next copy: none at all where there is no copy of this interval.
func due(all []copied, now time.Time, interval time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	newest := order(all, now)[len(all)-1]
	if newest.at.After(now) {
		return 0
	}
	return max(0, newest.at.Add(interval).Sub(now))
}

// wanted tells whether a store at a revision is to be copied: not one that is new and empty, nor one that the newest
// copy has.
func wanted(all []copied, now time.Time, revision int64) bool {
	if len(all) == 0 {
		return revision > emptyRevision
	}
	return order(all, now)[len(all)-1].revision != revision
}

// surplus are the copies that go when so many are kept: the oldest.
func surplus(all []copied, now time.Time, keep int) []copied {
	return order(all, now)[:max(0, len(all)-keep)]
}

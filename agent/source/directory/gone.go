package directory

import (
	"time"

	"golang.org/x/sys/unix"
)

// gone are files that went, and may come back until no more go.
type gone struct {
	names map[string]bool
	at    time.Time // when they are gone for good
	most  time.Time // the latest that this can be
}

// quietAfter is how long a file that goes may take to come back.
func (c *Config) quietAfter(mask uint32) time.Duration {
	switch {
	case c.Quiet > 0:
		return c.Quiet
	case mask&unix.IN_MOVED_FROM != 0:
		return renamedQuiet
	}
	return removedQuiet
}

// add notes one that went, and extends the moment of all.
func (g *gone) add(name string, quiet time.Duration) {
	now := time.Now()
	if len(g.names) == 0 {
		g.most = now.Add(max(goneLimit, quiet))
		g.at = now
	}
	g.names[name] = true
	if t := now.Add(quiet); t.After(g.at) {
		g.at = t
	}
	if g.at.After(g.most) {
		g.at = g.most
	}
}

// due says whether there are some that are gone for good.
func (g *gone) due(now time.Time) bool { return len(g.names) > 0 && !now.Before(g.at) }

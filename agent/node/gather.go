package node

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// How long the runtime is waited for, each time, and how long one counts as well that does not answer, as under
// kubelet: it may be on its way up again, as after an upgrade, and pods go on meanwhile.
const (
	askFor   = 5 * time.Second
	downFrom = 30 * time.Second
)

// What kubelet says of a runtime that does not answer.
const (
	messageDown    = "container runtime is down"
	messageUnknown = "container runtime status check may not have completed yet"
)

// gatherer gets the facts. It is for one goroutine.
type gatherer struct {
	sources  Sources
	identity Identity
	max      int // images; -1: all

	runtime  Runtime // as it has answered last
	answered time.Time
	images   []Image
}

// facts asks all sources, that of the images where told to. Failing is that the runtime does not answer; since when, it
// is told by what the facts say.
func (g *gatherer) facts(ctx context.Context, withImages bool) (f Facts, failing error) {
	f.Identity = g.identity
	f.Machine, f.Addresses, f.Resources = ask(g.sources.Machine), ask(g.sources.Addresses), ask(g.sources.Resources)
	f.Pressure, f.Drivers, f.InUse = ask(g.sources.Pressure), ask(g.sources.Drivers), ask(g.sources.InUse)
	f.NotReady = ask(g.sources.NotReady)
	f.Runtime, failing = g.askRuntime(ctx)
	if withImages && failing == nil {
		failing = g.askImages(ctx)
	}
	f.Images = g.images
	return f, failing
}

// ask is what a source says, nothing where there is none.
func ask[T any](source func() T) (out T) {
	if source != nil {
		out = source()
	}
	return out
}

func (g *gatherer) askRuntime(ctx context.Context) (Runtime, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	now, err := g.sources.Runtime(ctx)
	if err == nil {
		g.runtime, g.answered = now, time.Now()
		return now, nil
	}
	out := g.runtime
	switch {
	case g.answered.IsZero():
		out.Down = messageUnknown
	case time.Since(g.answered) >= downFrom:
		out.Down = messageDown
	}
	return out, err
}

func (g *gatherer) askImages(ctx context.Context) error {
	if g.sources.Images == nil || g.max == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	list, err := g.sources.Images(ctx)
	if err != nil {
		return err
	}
	g.images = Largest(list, g.max)
	return nil
}

// Largest are the largest images of a list, as many as max says, -1: all; those of one size always in the same order,
// so that the Node does not change when nothing has.
func Largest(list []Image, most int) []Image {
	out := slices.Clone(list)
	slices.SortStableFunc(out, func(a, b Image) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), strings.Compare(first(a.Names), first(b.Names)))
	})
	if most >= 0 && len(out) > most {
		out = out[:most]
	}
	return slices.Clip(out)
}

func first(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

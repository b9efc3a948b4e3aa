// Package collect says which dead containers nobody needs any more. It is pure; the rules are kubelet's.
package collect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Policy is how many dead containers are kept, so that their logs can be read.
type Policy struct {
	// MinAge is how long ago a container has ended at least that goes.
	MinAge time.Duration
	// MaxPerContainer is how many are kept of each container of a pod; negative: any number.
	MaxPerContainer int
	// MaxTotal is how many are kept of all; negative: any number. It has its way where the other wants more.
	MaxTotal int
}

// Default is kubelet's.
func Default() Policy { return Policy{MaxPerContainer: 1, MaxTotal: -1} }

// Validate says what is wrong with a policy, by the names of the flags.
func (p Policy) Validate() error {
	if p.MinAge < 0 {
		return fmt.Errorf("--minimum-container-ttl-duration %s: must not be negative", p.MinAge)
	}
	if p.MaxPerContainer < -1 || p.MaxTotal < -1 {
		return errors.New("--maximum-dead-containers-per-container and --maximum-dead-containers: must be -1 (any number) or more")
	}
	return nil
}

// Next is when the next of the dead containers is old enough to go, after now; zero: all are.
func (p Policy) Next(dead []Container, now time.Time) (next time.Time) {
	for _, c := range dead {
		if at := c.Ended.Add(p.MinAge); at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// Container is a container that has ended.
type Container struct {
	ID      string
	Pod     types.UID
	Name    string
	Attempt uint32 // how often it had been started before
	Ended   time.Time
}

// Containers returns those of the dead containers that go now, the oldest first. Wanted says whether a pod is one of
// the node's still, whose containers may be looked at; of others all go. The latest of a container of a pod that is
// wanted is what the pod's status is told from, and goes only for the sake of MaxTotal, or when none is to be kept.
func (p Policy) Containers(dead []Container, wanted func(types.UID) bool, now time.Time) []Container {
	type unit struct {
		pod  types.UID
		name string
	}
	var out []Container
	units := map[unit][]Container{}
	for _, c := range dead {
		switch key := (unit{c.Pod, c.Name}); {
		case now.Sub(c.Ended) < p.MinAge:
			// too young
		case !wanted(c.Pod):
			out = append(out, c)
		default:
			units[key] = append(units[key], c)
		}
	}
	total := 0
	trim := func(most int) {
		total = 0
		for key, list := range units {
			slices.SortFunc(list, older)
			cut := max(0, len(list)-most)
			out = append(out, list[:cut]...)
			units[key] = list[cut:]
			total += len(list) - cut
		}
	}
	if p.MaxPerContainer >= 0 {
		trim(p.MaxPerContainer)
	} else {
		trim(len(dead))
	}
	if p.MaxTotal >= 0 && total > p.MaxTotal {
		trim(max(1, p.MaxTotal/len(units))) // as many of each, before any has none
		var left []Container
		for _, list := range units {
			left = append(left, list...)
		}
		slices.SortFunc(left, older)
		out = append(out, left[:max(0, len(left)-p.MaxTotal)]...)
	}
	slices.SortFunc(out, older)
	return out
}

// older puts those first that have ended first.
func older(a, b Container) int {
	return cmp.Or(a.Ended.Compare(b.Ended), cmp.Compare(a.ID, b.ID))
}

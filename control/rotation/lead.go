package rotation

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-node/berth/control/pki"
)

// Leader says how far rotations are to be.
type Leader struct {
	Etcd  *clientv3.Client
	Store *pki.Store // of one of the members
	// Members are the names of all members, those among them that do not run.
	Members func(context.Context) ([]string, error)
	// Patience is how long all of them may take to follow.
	Patience time.Duration
}

// Begin has another authority take the place of one. When it returns the next one signs, and both are trusted. One that
// was begun goes on.
func (l *Leader) Begin(ctx context.Context, name string) error {
	b, err := read(ctx, l.Etcd)
	if err != nil {
		return err
	}
	r, there := b.records[name]
	if !there || r.Phase == Done {
		state, err := l.Store.State(name)
		if err != nil {
			return err
		}
		// A member that is not at the end of the rotation before could not follow the next one. The record of a store
		// that was restored may be of long ago.
		if there && state.Active == r.ID {
			if err := l.await(ctx, name, r); err != nil {
				return fmt.Errorf("the rotation before has not ended everywhere: %w", err)
			}
		}
		if r, err = l.start(ctx, name, b.versions[name]); err != nil {
			return err
		}
	}
	if r.Phase == Trust {
		if err := l.await(ctx, name, r); err != nil {
			return err
		}
		if r, err = l.move(ctx, name, r, Sign); err != nil {
			return err
		}
	}
	return l.await(ctx, name, r)
}

// start makes what follows, and the record of it.
func (l *Leader) start(ctx context.Context, name string, version int64) (record, error) {
	state, err := l.Store.State(name)
	if err != nil {
		return record{}, err
	}
	id, file, err := l.Store.MakeNext(name)
	if err != nil {
		return record{}, err
	}
	r := record{ID: id, Of: state.Active, Phase: Trust}
	if r.Sealed, err = seal(l.Store, name, r.Of, file); err != nil {
		return r, err
	}
	return r, write(ctx, l.Etcd, name, r, version)
}

// move writes the next phase of a rotation.
func (l *Leader) move(ctx context.Context, name string, from record, to Phase) (record, error) {
	b, err := read(ctx, l.Etcd)
	if err != nil {
		return from, err
	}
	r := b.records[name]
	if r.ID != from.ID || r.Phase != from.Phase {
		return r, fmt.Errorf("rotate %s: somebody else is at it", name)
	}
	r.Phase = to
	if to == Done {
		r.Sealed = nil
	}
	return r, write(ctx, l.Etcd, name, r, b.versions[name])
}

// Finish has the authority before trusted no more. It refuses that while anybody is known to need it, unless it is
// forced.
func (l *Leader) Finish(ctx context.Context, name string, force bool) error {
	b, err := read(ctx, l.Etcd)
	if err != nil {
		return err
	}
	r, there := b.records[name]
	switch {
	case !there:
		return fmt.Errorf("finish rotation of %s: none has begun", name)
	case r.Phase == Trust:
		return fmt.Errorf("finish rotation of %s: the next one does not sign yet on all members: run it with --begin again", name)
	case r.Phase == Sign:
		if !force {
			if err := l.needed(ctx, name, r); err != nil {
				return err
			}
		}
		if r, err = l.move(ctx, name, r, Done); err != nil {
			return err
		}
	}
	if err := l.await(ctx, name, r); err != nil && !force {
		return err
	}
	return nil
}

// needed says who needs the authority before.
func (l *Leader) needed(ctx context.Context, name string, r record) error {
	if err := l.await(ctx, name, r); err != nil {
		return fmt.Errorf("finish rotation of %s: %w; --force leaves such a member out", name, err)
	}
	b, err := read(ctx, l.Etcd)
	if err != nil {
		return err
	}
	users := map[string]time.Time{}
	for _, p := range b.members[name] {
		maps.Copy(users, merged(place{}, place{}, p.Seen, time.Now()))
	}
	if len(users) == 0 {
		return nil
	}
	return fmt.Errorf("finish rotation of %s: within the last hour %s came with what the one before has signed: give them new "+
		"certificates, kubeconfigs or tokens first; --force has them refused", name, strings.Join(slices.Sorted(maps.Keys(users)), ", "))
}

// await waits until all members are as far as a record.
func (l *Leader) await(ctx context.Context, name string, r record) error {
	ctx, cancel := context.WithTimeout(ctx, l.Patience)
	defer cancel()
	members, err := l.Members(ctx)
	if err != nil {
		return err
	}
	var events clientv3.WatchChan
	var late []string
	for {
		b, err := read(ctx, l.Etcd)
		if err != nil && (ctx.Err() == nil || late == nil) {
			return err
		}
		if err == nil {
			if late = behind(members, b.members[name], r); len(late) == 0 {
				return nil
			}
			if events == nil {
				events = changes(ctx, l.Etcd, b.revision)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("rotate %s: not all members have followed within %s: %s. One that does not run is to be started, "+
				"one that is gone for good taken away with berth-control etcd remove; then run the command again",
				name, l.Patience, strings.Join(late, "; "))
		case e, ok := <-events:
			if ctx.Err() == nil && (!ok || e.Err() != nil) {
				return fmt.Errorf("watch rotations: %w", cmp.Or(e.Err(), errWatch))
			}
		}
	}
}

// behind are the members that are not as far as a record, with what they say of it.
func behind(members []string, places map[string]place, r record) []string {
	var late []string
	for _, m := range members {
		p := places[m]
		switch {
		case p.reached(r):
		case p.Err != "":
			late = append(late, m+": "+p.Err)
		default:
			late = append(late, m)
		}
	}
	return late
}

// Progress is how far a rotation is, for who reads it.
type Progress struct {
	Name, Next, Before string // the authority, and two IDs
	Phase              Phase
	Behind             []string             // members that are not as far
	Seen               map[string]time.Time // who came with what the one before has signed
}

// Progress reads how far all rotations are, in the order of pki.Rotated.
func (l *Leader) Progress(ctx context.Context) ([]Progress, error) {
	b, err := read(ctx, l.Etcd)
	if err != nil {
		return nil, err
	}
	members, err := l.Members(ctx)
	if err != nil {
		return nil, err
	}
	var all []Progress
	for _, name := range pki.Rotated() {
		r, there := b.records[name]
		if !there {
			continue
		}
		p := Progress{Name: name, Next: r.ID, Before: r.Of, Phase: r.Phase, Behind: behind(members, b.members[name], r), Seen: map[string]time.Time{}}
		if r.Phase == Sign {
			for _, m := range b.members[name] {
				maps.Copy(p.Seen, m.Seen)
			}
		}
		all = append(all, p)
	}
	return all, nil
}

package rotation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-node/berth/control/pki"
)

const (
	// again is how soon a member tries again what has failed.
	again = time.Second
	// SeenFor is how long somebody counts who has come with what the one before has signed.
	SeenFor = time.Hour
	// maxSeen bounds who is told of, for each authority.
	maxSeen = 200
)

// Uses is who has come with what an authority, or a key of tokens, has signed.
type Uses interface {
	// Watch has those kept that come with what these have signed, of which it has the IDs, and forgets others.
	Watch(ids []string)
	// Seen are they, and when they came last.
	Seen(id string) map[string]time.Time
	// Changed has something in it when there are others.
	Changed() <-chan struct{}
}

// Follower has a member follow rotations.
type Follower struct {
	Etcd  *clientv3.Client
	Store *pki.Store
	Self  string // the member's name
	Uses  Uses
	// Changed is called when files are others than before. It may be called again.
	Changed func() error
	Log     *slog.Logger

	told    map[string]string    // what was last logged of each, once for each cause
	settled map[string]pki.State // what Changed was called for
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	f.told, f.settled = map[string]string{}, map[string]pki.State{}
	for ctx.Err() == nil {
		if err := f.follow(ctx); err != nil && ctx.Err() == nil {
			f.tell("", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// follow does what the records say, as often as they change, until etcd cannot be asked.
func (f *Follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var events clientv3.WatchChan
	for {
		b, err := read(ctx, f.Etcd)
		if err != nil {
			return err
		}
		if events == nil {
			events = changes(ctx, f.Etcd, b.revision)
		}
		failed := f.all(ctx, b)
		var retry <-chan time.Time
		if failed {
			retry = time.After(again)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-f.Uses.Changed():
		case <-retry:
		case e, ok := <-events:
			if !ok || e.Err() != nil {
				return fmt.Errorf("watch rotations: %w", cmp.Or(e.Err(), errWatch))
			}
		}
	}
}

// all does what is to be done of each rotation, and says how far it is. It returns whether anything is to be tried
// again.
func (f *Follower) all(ctx context.Context, b *board) (failed bool) {
	var watched []string
	for _, r := range b.records {
		if r.Phase == Sign {
			watched = append(watched, r.Of)
		}
	}
	f.Uses.Watch(watched)
	for name, r := range b.records {
		have := b.members[name][f.Self]
		p, err := f.one(name, r)
		if err != nil {
			failed = true
			p.Err = err.Error()
		}
		f.tell(name, err)
		if r.Phase == Sign {
			p.Seen = merged(have, p, f.Uses.Seen(r.Of), time.Now())
		}
		if err := f.say(ctx, name, have, p); err != nil {
			failed = true
			f.tell(name, err)
		}
	}
	return failed
}

// one has the files be as a record says, and returns how far they are.
func (f *Follower) one(name string, r record) (place, error) {
	state, err := f.Store.State(name)
	if err != nil {
		return place{}, err
	}
	before := state
	if state.Active == r.Of && state.Next != r.ID && r.Phase != Done {
		file, err := unseal(f.Store, name, r)
		if err == nil {
			err = f.Store.Stage(name, file)
		}
		if err != nil {
			return place{}, err
		}
		if state, err = f.Store.State(name); err != nil {
			return place{}, err
		}
	}
	if state.Active == r.Of && state.Next == r.ID && r.Phase.rank() >= Sign.rank() {
		if err := f.Store.Switch(name); err != nil {
			return place{r.ID, Trust, nil, ""}, err
		}
		state.Active, state.Next, state.Old = r.ID, "", r.Of
	}
	if state.Active == r.ID && state.Old != "" && r.Phase == Done {
		if err := f.Store.Retire(name); err != nil {
			return place{r.ID, Sign, nil, ""}, err
		}
		state.Old = ""
	}
	p := placeOf(state, r)
	if state != before {
		f.Log.Info("certificate authority is rotated", "name", name, "phase", p.Phase)
	}
	// What follows from the files is made at a start, too: a kill may have come between.
	if has, ok := f.settled[name]; !ok || has != state {
		if err := f.Changed(); err != nil {
			return place{}, err
		}
		f.settled[name] = state
	}
	if p.ID == "" {
		return p, fmt.Errorf("rotate %s: this member has %.12s, and not %.12s or what follows it, %.12s: it was away when that was replaced; "+
			"put the files of another member's pki here, or remove the data directory and join again", name, state.Active, r.Of, r.ID)
	}
	return p, nil
}

// placeOf is how far the files of a member are.
func placeOf(s pki.State, r record) place {
	switch {
	case s.Active == r.ID && s.Old == "":
		return place{ID: r.ID, Phase: Done}
	case s.Active == r.ID:
		return place{ID: r.ID, Phase: Sign}
	case s.Active == r.Of && s.Next == r.ID:
		return place{ID: r.ID, Phase: Trust}
	}
	return place{}
}

// merged is who was seen by this process, and by the one before it.
func merged(have, now place, seen map[string]time.Time, at time.Time) map[string]time.Time {
	all := map[string]time.Time{}
	if have.ID == now.ID {
		maps.Copy(all, have.Seen)
	}
	for who, last := range seen {
		if last.After(all[who]) && (len(all) < maxSeen || !all[who].IsZero()) {
			all[who] = last
		}
	}
	maps.DeleteFunc(all, func(_ string, last time.Time) bool { return at.Sub(last) > SeenFor })
	if len(all) == 0 {
		return nil
	}
	return all
}

// say writes how far this member is, if that is not what is written.
func (f *Follower) say(ctx context.Context, name string, have, p place) error {
	if have.ID == p.ID && have.Phase == p.Phase && have.Err == p.Err && maps.EqualFunc(have.Seen, p.Seen, time.Time.Equal) {
		return nil
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := f.Etcd.Put(ctx, memberPrefix+name+"/"+f.Self, string(text)); err != nil {
		return fmt.Errorf("write how far %s is rotated: %w", name, err)
	}
	return nil
}

// tell logs why something fails, once for each cause.
func (f *Follower) tell(name string, err error) {
	var text string
	if err != nil {
		text = err.Error()
	}
	if text != "" && f.told[name] != text {
		f.Log.Error("a rotation is not followed", "name", name, "error", text)
	}
	f.told[name] = text
}

package rotation

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-node/berth/control/etcd"
	"github.com/berth-node/berth/control/pki"
)

// someone is who has come with what one authority has signed.
type someone struct {
	id, who string
	changed chan struct{}
}

func (s *someone) Watch([]string)           {}
func (s *someone) Changed() <-chan struct{} { return s.changed }
func (s *someone) Seen(id string) map[string]time.Time {
	if id != s.id {
		return nil
	}
	return map[string]time.Time{s.who: time.Now()}
}

// client is one of an etcd of its own.
func client(t *testing.T) *clientv3.Client {
	t.Helper()
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	m, err := etcd.Start(t.Context(), etcd.Options{Dir: filepath.Join(dir, "e"), RunDir: filepath.Join(dir, "r"), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Stop)
	c, err := etcd.Connect(etcd.Servers{Endpoints: []string{m.Endpoint()}}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// members are some that have the authorities of the first one.
func members(t *testing.T, names ...string) map[string]*pki.Store {
	t.Helper()
	out := map[string]*pki.Store{}
	first := t.TempDir()
	for i, name := range names {
		dir := first
		if i > 0 {
			dir = t.TempDir()
			for _, f := range pki.Shared() {
				data, err := os.ReadFile(filepath.Join(first, f))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, f), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		s, err := pki.Open(dir, pki.Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		out[name] = s
	}
	return out
}

// follows has a member follow until what is returned is called.
func follows(t *testing.T, c *clientv3.Client, s *pki.Store, name string, u *someone) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	f := &Follower{Etcd: c, Store: s, Self: name, Uses: u, Changed: func() error { return nil }, Log: slog.New(slog.DiscardHandler)}
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func leader(c *clientv3.Client, s *pki.Store, patience time.Duration, names ...string) *Leader {
	return &Leader{Etcd: c, Store: s, Patience: patience, Members: func(context.Context) ([]string, error) { return names, nil }}
}

const long, short = time.Minute, 300 * time.Millisecond

// TestAllFollow rotates everything on two members, with one away at first and one user left at the end.
func TestAllFollow(t *testing.T) {
	c, all := client(t), members(t, "a", "b")
	active := func(member, name string) pki.State {
		s, err := all[member].State(name)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	old := active("a", pki.ClusterAuthority).Active
	user := &someone{old, "somebody", make(chan struct{}, 1)}
	follows(t, c, all["a"], "a", user)
	hasty := leader(c, all["a"], short, "a", "b")
	patient := leader(c, all["a"], long, "a", "b")

	if err := hasty.Finish(t.Context(), pki.ClusterAuthority, true); err == nil || !strings.Contains(err.Error(), "none has begun") {
		t.Errorf("what has not begun is finished: %v", err)
	}
	if err := hasty.Begin(t.Context(), pki.ClusterAuthority); err == nil || !strings.Contains(err.Error(), ": b.") {
		t.Errorf("b is away, and the error is %v", err)
	}
	if got := active("a", pki.ClusterAuthority); got.Active != old || got.Next == "" {
		t.Errorf("a does not wait for b: %+v", got)
	}
	if err := hasty.Finish(t.Context(), pki.ClusterAuthority, true); err == nil || !strings.Contains(err.Error(), "--begin") {
		t.Errorf("what does not sign is finished: %v", err)
	}
	stop := follows(t, c, all["b"], "b", &someone{changed: make(chan struct{})})
	for _, name := range pki.Rotated() {
		if err := patient.Begin(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if a, b := active("a", name), active("b", name); a != b || a.Old == "" || a.Next != "" {
			t.Errorf("%s: a has %+v, b %+v", name, a, b)
		}
	}
	if err := patient.Finish(t.Context(), pki.ClusterAuthority, false); err == nil || !strings.Contains(err.Error(), "somebody") {
		t.Errorf("somebody needs it, and the error is %v", err)
	}
	p, err := patient.Progress(t.Context())
	if err != nil || len(p) != len(pki.Rotated()) || p[0].Before != old || p[0].Seen["somebody"].IsZero() {
		t.Errorf("told is %+v, %v", p, err)
	}
	stop()
	if err := hasty.Finish(t.Context(), pki.FrontProxyAuthority, false); err != nil {
		t.Logf("b is away: %v", err)
	}
	follows(t, c, all["b"], "b", &someone{changed: make(chan struct{})})
	for _, name := range pki.Rotated() {
		if err := patient.Finish(t.Context(), name, true); err != nil {
			t.Error(err)
		}
		if a, b := active("a", name), active("b", name); a != b || a.Old != "" {
			t.Errorf("%s at the end: a has %+v, b %+v", name, a, b)
		}
	}
	// Nothing of what follows is left in the store, whose copies leave the machine.
	got, err := c.Get(t.Context(), recordPrefix, clientv3.WithPrefix())
	if err != nil || len(got.Kvs) != len(pki.Rotated()) {
		t.Fatalf("%v, %v", got, err)
	}
	for _, kv := range got.Kvs {
		var r record
		if err := json.Unmarshal(kv.Value, &r); err != nil || len(r.Sealed) > 0 || r.Phase != Done {
			t.Errorf("%s is %s", kv.Key, kv.Value)
		}
	}
}

// TestLeftBehind finishes without a member that is away. It says what it needs when it is back, and changes nothing.
func TestLeftBehind(t *testing.T) {
	c, all := client(t), members(t, "a", "b")
	follows(t, c, all["a"], "a", &someone{changed: make(chan struct{})})
	l := leader(c, all["a"], long, "a")
	if err := l.Begin(t.Context(), pki.ClusterAuthority); err != nil {
		t.Fatal(err)
	}
	if err := l.Finish(t.Context(), pki.ClusterAuthority, true); err != nil {
		t.Fatal(err)
	}
	before, err := all["b"].State(pki.ClusterAuthority)
	if err != nil {
		t.Fatal(err)
	}
	events := changes(t.Context(), c, 1)
	follows(t, c, all["b"], "b", &someone{changed: make(chan struct{})})
	for told := false; !told; {
		select {
		case e := <-events:
			told = slices.ContainsFunc(e.Events, func(e *clientv3.Event) bool {
				return strings.HasSuffix(string(e.Kv.Key), "/b") && strings.Contains(string(e.Kv.Value), "join again")
			})
		case <-time.After(long):
			t.Fatal("a member that was left behind says nothing")
		}
	}
	if after, err := all["b"].State(pki.ClusterAuthority); err != nil || after != before {
		t.Errorf("it has %+v, and had %+v: %v", after, before, err)
	}
	if err := leader(c, all["a"], short, "a", "b").Begin(t.Context(), pki.ClusterAuthority); err == nil || !strings.Contains(err.Error(), "join again") {
		t.Errorf("the next rotation begins without it: %v", err)
	}
}

// TestHostileRecords has records that nobody of ours has written. No file is changed for them.
func TestHostileRecords(t *testing.T) {
	c, all := client(t), members(t, "a")
	other := members(t, "x")["x"]
	state, err := all["a"].State(pki.ClusterAuthority)
	if err != nil {
		t.Fatal(err)
	}
	id, file, err := other.MakeNext(pki.ClusterAuthority)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := seal(all["a"], pki.ClusterAuthority, state.Active, file)
	if err != nil {
		t.Fatal(err)
	}
	f := &Follower{
		Etcd: c, Store: all["a"], Self: "a", Uses: &someone{}, Changed: func() error { return nil }, Log: slog.New(slog.DiscardHandler),
		told: map[string]string{}, settled: map[string]pki.State{},
	}
	for what, r := range map[string]record{
		"sealed, of another cluster": {id, state.Active, Sign, foreign},
		"garbage":                    {id, state.Active, Trust, []byte("x")},
		"huge":                       {id, state.Active, Trust, make([]byte, maxSealed+1)},
		"nothing":                    {id, state.Active, Trust, nil},
		"of nobody":                  {id, id, Sign, foreign},
		"done before it began":       {id, state.Active, Done, nil},
		"itself":                     {state.Active, state.Active, Trust, foreign},
	} {
		_, err := f.one(pki.ClusterAuthority, r)
		if now, stateErr := all["a"].State(pki.ClusterAuthority); stateErr != nil || now != state {
			t.Errorf("%s: the files are %+v, %v", what, now, stateErr)
		}
		if err == nil && what != "itself" {
			t.Errorf("%s: it is followed", what)
		}
	}
	for _, text := range []string{"{", `{"phase":"later"}`, "null"} {
		if _, err := c.Put(t.Context(), recordPrefix+"ca", text); err != nil {
			t.Fatal(err)
		}
		if _, err := read(t.Context(), c); err == nil {
			t.Errorf("%q is a record", text)
		}
	}
	if _, err := c.Put(t.Context(), recordPrefix+"../../x", fmt.Sprintf(`{"id":%q,"of":%q,"phase":"sign"}`, id, id)); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t.Context(), c); err == nil {
		t.Error("a record of no authority is one")
	}
}

package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/node"
)

// Manager makes and deletes what this node's claims ask for. It is safe for concurrent use.
type Manager struct {
	cfg     Config
	journal journal
	log     *slog.Logger
	wake    chan struct{}

	mu       sync.Mutex
	items    map[string]*item // by name
	told     bool             // what is wanted is known
	doubt    bool             // it may be more than is known
	others   map[Handle]bool  // that manifests name by themselves
	problems []string
	blocked  map[string]string // why there is a record that cannot be read, by name; never changed
}

// item is a volume or snapshot that is wanted, or that there is a record of. What is done with it one goroutine does.
type item struct {
	name string
	kind Kind

	// Guarded by Manager.mu.
	record *record
	want   *Claim // nil: nobody wants it
	busy   bool
	free   chan struct{} // closed when it is not busy any more; nil: nobody waits for that
	again  bool          // something has changed while it was busy
	due    time.Time     // when to look at it; zero: when something changes
	looked time.Time     // since when the claim is known to be missing, of this run
	delay  time.Duration
	err    error
	waits  bool // it was told that nothing is made yet
}

// New reads the records.
func New(c Config) (*Manager, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Changed == nil {
		c.Changed = func(Kind, Ref) {}
	}
	if c.Event == nil {
		c.Event = func(Event) {}
	}
	if c.Drivers == nil || c.Node == nil || c.Secret == nil || c.Grace < 0 {
		return nil, errors.New("provision volumes: drivers, node and secrets are needed, and a grace")
	}
	m := &Manager{cfg: c, journal: journal{c.Dir}, log: c.Log, wake: make(chan struct{}, 1), items: map[string]*item{}}
	all, problems, blocked, err := m.journal.load()
	if err != nil {
		return nil, fmt.Errorf("read records of provisioned volumes: %w", err)
	}
	for name, r := range all {
		m.items[name] = &item{name: name, kind: r.Kind, record: r}
	}
	m.problems, m.blocked = problems, blocked
	for _, p := range problems {
		m.log.Error("record of a provisioned volume cannot be read", "error", p)
	}
	return m, nil
}

// Problems are records that cannot be read.
func (m *Manager) Problems() []string { return slices.Clone(m.problems) }

// Want says all that is wanted, and what others have. What is not among it counts as missing from then on, so it must
// be complete.
func (m *Manager) Want(volumes, snapshots, groups []Claim, others ...Handle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := !m.told
	m.told = true
	m.others = map[Handle]bool{}
	for _, h := range others {
		m.others[h] = true
	}
	wanted, made := map[string]bool{}, m.made()
	for k, list := range map[Kind][]Claim{Volume: volumes, Snapshot: snapshots, Group: groups} {
		for _, c := range list {
			if uid := made[claimOf{k, c.Ref}]; uid != "" && !c.Ephemeral {
				c.UID = uid
			}
			name := c.name(k)
			i := m.items[name]
			if c.Held && (i == nil || i.record == nil) {
				continue
			}
			wanted[name] = true
			if i == nil {
				i = &item{name: name, kind: k}
				m.items[name] = i
			}
			if i.want == nil || i.want.Waits != c.Waits || i.want.Held != c.Held || !sameClaim(i.want, &c) {
				i.soon()
			}
			i.want = &c
		}
	}
	for name, i := range m.items {
		if !wanted[name] && (i.want != nil || first) {
			i.want = nil
			i.soon()
		}
	}
	m.rouse()
}

type claimOf struct {
	kind Kind
	ref  Ref
}

// Doubt says whether there may be claims that nobody sees, as where nothing at all is in the manifests, since their
// directory is not mounted. Meanwhile no time of a grace passes.
func (m *Manager) Doubt(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.doubt = on
}

// made are the UIDs of the claims that something was made for, which is theirs though they would get other ones now, as
// when the node has got another name; the lock is held.
func (m *Manager) made() map[claimOf]string {
	out, by := map[claimOf]string{}, map[claimOf]*item{}
	for _, i := range m.items {
		if i.record == nil || i.record.Deleting || i.record.Claim.Ephemeral {
			continue
		}
		key := claimOf{i.kind, i.record.Claim.Ref}
		if o := by[key]; o == nil || cmp.Or(cmp.Compare(i.rank(), o.rank()), cmp.Compare(i.name, o.name)) < 0 {
			out[key], by[key] = i.record.Claim.UID, i
		}
	}
	return out
}

// elsewhere says who else has what an item has by its record; the lock is not held.
func (m *Manager) elsewhere(i *item, r *record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	has := r.handles()
	for _, h := range has {
		if m.others[h] {
			return fmt.Errorf("%s %s of CSI driver %s is in a manifest by its handle", h.Kind, csi.Text(h.Handle), h.Driver)
		}
	}
	for _, o := range m.items {
		if o == i || o.record == nil || o.want == nil && !o.record.stays() {
			continue
		}
		for _, h := range o.record.handles() {
			if slices.Contains(has, h) {
				return fmt.Errorf("%s %s of CSI driver %s is that of claim %s", h.Kind, csi.Text(h.Handle), h.Driver, o.record.Claim.String())
			}
		}
	}
	return nil
}

// soon has an item be looked at now.
func (i *item) soon() { i.due, i.delay, i.again = time.Unix(1, 0), 0, true }

func (m *Manager) rouse() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run makes and deletes until ctx ends, and returns when no call is under way.
func (m *Manager) Run(ctx context.Context) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	defer m.cfg.Drivers.Subscribe(m.heard)()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next := m.begin(func(i *item) { calls.Go(func() { m.work(ctx, i) }) })
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer.C:
		}
	}
}

// heard has what waits for a driver be tried when it comes.
func (m *Manager) heard(e csi.Event) {
	if !e.Here {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.items {
		if i.err != nil && (i.want != nil && i.want.Class.Driver == e.Driver || i.record != nil && i.record.Claim.Class.Driver == e.Driver) {
			i.soon()
		}
	}
	m.rouse()
}

// Released tries again what waits for pods to release volumes.
func (m *Manager) Released() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.items {
		if errors.Is(i.err, errInUse) {
			i.soon()
		}
	}
	m.rouse()
}

const idle = time.Hour

// begin starts what is due, and says when more will be.
func (m *Manager) begin(start func(*item)) (next time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next = idle
	if !m.told { // what is missing is not known
		return next
	}
	now := m.cfg.Now()
	for _, i := range m.items {
		switch {
		case i.busy || i.due.IsZero():
		case i.due.After(now):
			next = min(next, i.due.Sub(now))
		default:
			i.busy, i.again, i.due = true, false, time.Time{}
			start(i)
		}
	}
	return next
}

// How soon something is tried again that failed.
const (
	retryInitial = time.Second
	retryMax     = 5 * time.Minute
)

// work does what is to be done with an item, and says when it is to be looked at again.
func (m *Manager) work(ctx context.Context, i *item) {
	after, err := acts{m}.sync(ctx, i)
	m.mu.Lock()
	changed := (err == nil) != (i.err == nil) || err != nil && err.Error() != i.err.Error()
	i.err = err
	i.give()
	switch {
	case err != nil && !errors.Is(err, errInUse):
		i.delay = min(max(2*i.delay, retryInitial), retryMax)
		i.due = m.cfg.Now().Add(i.delay)
	case after > 0:
		i.delay, i.due = 0, m.cfg.Now().Add(after)
	default:
		i.delay = 0
	}
	if i.again {
		i.due = time.Unix(1, 0)
	}
	if i.record == nil && (i.want == nil || i.want.Held) {
		delete(m.items, i.name)
	}
	about := i.ref()
	var event Event
	if err != nil {
		event = m.failed(i, err)
	}
	m.mu.Unlock()
	if changed && err != nil && ctx.Err() == nil {
		m.cfg.Event(event)
		m.log.Warn("not done", "what", string(i.kind), "name", i.name, "claim", about.String(), "error", err)
	}
	if changed {
		m.cfg.Changed(i.kind, about)
	}
	m.rouse()
}

func (i *item) ref() Ref {
	switch {
	case i.want != nil:
		return i.want.Ref
	case i.record != nil:
		return i.record.Claim.Ref
	}
	return Ref{}
}

// keep makes r the record of an item, on the disk first.
func (m *Manager) keep(i *item, r *record) error {
	if err := m.journal.keep(r); err != nil {
		return err
	}
	m.mu.Lock()
	i.record = r
	m.mu.Unlock()
	m.cfg.Changed(i.kind, r.Claim.Ref)
	return nil
}

func (m *Manager) forget(i *item) error {
	if err := m.journal.forget(i.name); err != nil {
		return err
	}
	m.mu.Lock()
	about := i.ref()
	i.record = nil
	m.mu.Unlock()
	m.cfg.Changed(i.kind, about)
	return nil
}

// List is all that is wanted or that there is, in order.
func (m *Manager) List() []State {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []State
	for _, i := range m.items {
		out = append(out, m.state(i))
	}
	slices.SortFunc(out, func(a, b State) int { return strings.Compare(string(a.Kind)+a.Name, string(b.Kind)+b.Name) })
	return out
}

// Get is the volume or snapshot of a claim; false: nobody has asked for it.
func (m *Manager) Get(k Kind, claim Ref) (State, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.of(k, claim)
	if len(all) == 0 {
		return State{}, false
	}
	return m.state(all[0]), true
}

func (m *Manager) state(i *item) State {
	s := State{Kind: i.kind, Name: i.name}
	if r := i.record; r != nil {
		s.Claim, s.Handle, s.Bytes, s.Context, s.Created = r.Claim, r.Handle, r.Bytes, r.Context, r.Created
		s.Ready = r.Handle != "" && r.Ready && !r.Deleting
		s.Missing, s.Deleting, s.Secrets = r.Missing, r.Deleting, r.Secrets
		s.FSType, s.Stays, s.Attributes, s.Members = r.FSType, r.stays(), r.Changed.Now.Class, slices.Clone(r.Members)
		if r.Missing && !r.stays() {
			s.Left = max(acts{m}.grace(&r.Claim)-r.For, 0)
		}
	} else if i.want != nil {
		s.Claim = *i.want
	}
	if i.err != nil {
		s.Error = i.err.Error()
	}
	return s
}

// errInUse is of what pods still have.
var errInUse = errors.New("it is in use")

func users(pods []node.Pod) string {
	var names []string
	for _, p := range pods[:min(len(pods), 5)] {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return strings.Join(names, ", ")
}

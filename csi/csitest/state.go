package csitest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Volume is a volume, with what its caller has done to it so far.
type Volume struct {
	ID, Name   string
	Bytes      int64
	Parameters map[string]string
	Mutable    map[string]string // that can be changed
	Context    map[string]string
	Arguments  string // that it was made with
	Source     string // the snapshot or volume that it was made of
	Block      bool
	Ephemeral  bool

	Attached map[string]map[string]string // nodes, and the publish context of each
	Stage    *Place
	Targets  map[string]*Place // by path

	Abnormal string // says GetVolumeStats; "": well
}

// Place is where a volume was asked to be.
type Place struct {
	Path      string
	Arguments string // of the first call
	Done      bool   // the last call was answered well
	Undoing   bool   // the caller has begun to undo it
}

// Snapshot is a snapshot.
type Snapshot struct {
	ID, Name, Volume string
	Bytes            int64
	Asked            int // times before it was ready
	Parameters       map[string]string
	Group            string // that it is of
}

// Group is a group snapshot.
type Group struct {
	ID, Name  string
	Volumes   []string
	Snapshots []string // in the order of the volumes
	Asked     int
}

// Call is one that was answered, or is going on.
type Call struct {
	RPC, Volume string
	Code        string // "" while it goes on
}

// String is such as "NodeStageVolume a: OK".
func (c Call) String() string { return c.RPC + " " + c.Volume + ": " + c.Code }

// State is all that a driver knows.
type State struct {
	Boot       string
	Volumes    map[string]*Volume
	Snapshots  map[string]*Snapshot
	Groups     map[string]*Group
	Violations []string
	Notes      []string // what is allowed, but was not needed
	Calls      []Call   // since the driver was opened
	Registered []string // what the agent said of the registration: "" for well
}

// ledger keeps the state, in memory and in a file.
type ledger struct {
	file string

	mu      sync.Mutex
	s       State
	changed chan struct{}
	busy    map[string]*operation // by volume
}

func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

func openLedger(dir string) (*ledger, error) {
	l := &ledger{file: filepath.Join(dir, "state.json"), changed: make(chan struct{}), busy: map[string]*operation{}}
	data, err := os.ReadFile(l.file)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read state of driver: %w", err)
	default:
		if err := json.Unmarshal(data, &l.s); err != nil {
			return nil, fmt.Errorf("read state of driver: %w", err)
		}
	}
	if l.s.Volumes == nil {
		l.s.Volumes = map[string]*Volume{}
	}
	if l.s.Snapshots == nil {
		l.s.Snapshots = map[string]*Snapshot{}
	}
	if l.s.Groups == nil {
		l.s.Groups = map[string]*Group{}
	}
	l.s.Calls = nil
	if now := bootID(); l.s.Boot != now {
		l.s.Boot = now
		l.forgetPlaces()
	}
	return l, nil
}

// forgetPlaces is what a reboot does.
func (l *ledger) forgetPlaces() {
	for _, v := range l.s.Volumes {
		v.Stage, v.Targets = nil, map[string]*Place{}
	}
	maps.DeleteFunc(l.s.Volumes, func(_ string, v *Volume) bool { return v.Ephemeral })
}

// update changes the state and keeps it.
func (l *ledger) update(change func(*State)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.s)
	l.tell()
	kept := l.s
	kept.Calls = nil
	data, err := json.Marshal(kept)
	if err == nil {
		err = os.WriteFile(l.file+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(l.file+".new", l.file)
	}
	if err != nil {
		l.s.Violations = append(l.s.Violations, "the driver cannot keep its state: "+err.Error())
	}
}

// tell has those wait no longer that wait for a change.
func (l *ledger) tell() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *ledger) changes() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// volume is a copy of what is known of a volume, or nil.
func (l *ledger) volume(id string) *Volume {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.s.Volumes[id].clone()
}

func (v *Volume) clone() *Volume {
	if v == nil {
		return nil
	}
	c := *v
	c.Stage = v.Stage.clone()
	c.Attached, c.Mutable = maps.Clone(v.Attached), maps.Clone(v.Mutable)
	c.Targets = map[string]*Place{}
	for path, p := range v.Targets {
		c.Targets[path] = p.clone()
	}
	return &c
}

func (p *Place) clone() *Place {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// State is a copy of what the driver knows.
func (d *Driver) State() State { return d.ledger.state() }

func (l *ledger) state() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.s
	s.Violations, s.Notes, s.Calls = slices.Clone(s.Violations), slices.Clone(s.Notes), slices.Clone(s.Calls)
	s.Registered = slices.Clone(s.Registered)
	s.Volumes = map[string]*Volume{}
	for id, v := range l.s.Volumes {
		s.Volumes[id] = v.clone()
	}
	s.Snapshots = map[string]*Snapshot{}
	for id, one := range l.s.Snapshots {
		c := *one
		s.Snapshots[id] = &c
	}
	s.Groups = map[string]*Group{}
	for id, one := range l.s.Groups {
		c := *one
		s.Groups[id] = &c
	}
	return s
}

// Violations are what the caller has done against the specification.
func (d *Driver) Violations() []string { return d.State().Violations }

// Calls are the answered calls of some kinds, or of all, since the driver was opened.
func (d *Driver) Calls(rpcs ...string) []Call {
	return slices.DeleteFunc(d.State().Calls, func(c Call) bool {
		return c.Code == "" || len(rpcs) > 0 && !slices.Contains(rpcs, c.RPC)
	})
}

// Told are what the agent has said of the registration, "" for each that went well.
func (d *Driver) Told() []string { return d.State().Registered }

func (l *ledger) told(in *registerapi.RegistrationStatus) {
	said := in.GetError()
	if !in.GetPluginRegistered() && said == "" {
		said = "not registered"
	}
	l.update(func(s *State) { s.Registered = append(s.Registered, said) })
}

// Add makes a volume as an administrator would, for a PersistentVolume written by hand.
func (d *Driver) Add(id string, bytes int64, context map[string]string) error {
	v := &Volume{ID: id, Name: id, Bytes: bytes, Context: context}
	if err := d.store.make(v, ""); err != nil {
		return err
	}
	d.ledger.update(func(s *State) { s.Volumes[id] = v })
	return nil
}

// Sicken has a volume be abnormal from now on, or well with "".
func (d *Driver) Sicken(id, message string) {
	d.ledger.update(func(s *State) {
		if v := s.Volumes[id]; v != nil {
			v.Abnormal = message
		}
	})
}

func (l *ledger) violation(format string, args ...any) {
	l.update(func(s *State) { s.Violations = append(s.Violations, fmt.Sprintf(format, args...)) })
}

func (l *ledger) note(format string, args ...any) {
	l.update(func(s *State) { s.Notes = append(s.Notes, fmt.Sprintf(format, args...)) })
}

// arguments is a text that is the same for the same arguments.
func arguments(of ...any) string {
	data, _ := json.Marshal(of) // messages of the protocol and maps of strings cannot fail
	return string(data)
}

// capability is what a capability asks for, in words.
func capability(c *csi.VolumeCapability) string {
	m := c.GetMount()
	kind := "mount"
	if c.GetBlock() != nil {
		kind = "block"
	}
	return arguments(kind, c.GetAccessMode().GetMode().String(), m.GetFsType(), m.GetMountFlags(), m.GetVolumeMountGroup())
}

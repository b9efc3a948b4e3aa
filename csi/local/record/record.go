// Package record keeps what the driver knows of its volumes, snapshots and groups: a file each, written before what it
// tells of is done.
package record

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// State is how far the thing is that a record tells of. Only what is Ready is anybody's: all else is removed at the
// next start.
type State string

// The states of a thing, in their order.
const (
	Making   State = "making"
	Ready    State = "ready"
	Removing State = "removing"
)

func (s State) check() error {
	if slices.Contains([]State{Making, Ready, Removing}, s) {
		return nil
	}
	return fmt.Errorf("it has the state %q", s)
}

// types are those of storage that a record can tell of.
var types = []string{"directory", "loop", "lvm"}

// Content is what is on a volume or a snapshot of it.
type Content struct {
	Type      string `json:"type"` // of the storage: directory, loop or lvm
	Block     bool   `json:"block,omitempty"`
	FSType    string `json:"fsType,omitempty"`
	Encrypted bool   `json:"encrypted,omitempty"`
	// Formatted says that there is a file system on the device, and so may be data. Until then a file system may be
	// made at any time.
	Formatted bool `json:"formatted,omitempty"`
	// Locked says that the device has a LUKS header, whose key the owner has.
	Locked bool `json:"locked,omitempty"`
	// FSBytes is how large the device was when the file system was last made to take all of it.
	FSBytes int64 `json:"fsBytes,omitempty"`
	// Twin says that the file system has the identity of the one it was copied from.
	Twin bool `json:"twin,omitempty"`
	// Shared says that what it takes on the disk is in part what others take, too.
	Shared   bool  `json:"shared,omitempty"`
	Capacity int64 `json:"capacity"` // in bytes
}

func (c Content) check() error {
	switch {
	case !slices.Contains(types, c.Type):
		return fmt.Errorf("it has the type %q", c.Type)
	case c.Capacity <= 0 || c.FSBytes < 0:
		return fmt.Errorf("it has a capacity of %d bytes", c.Capacity)
	}
	return nil
}

// Volume is a volume.
type Volume struct {
	ID    string `json:"id"`
	Name  string `json:"name"` // by which it was asked for
	State State  `json:"state"`
	Content
	Quota      string            `json:"quota,omitempty"` // what the class asks for
	Limited    bool              `json:"limited,omitempty"`
	Trim       string            `json:"trim,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
	// Source is the ID of the volume or snapshot that it was made from.
	Source string `json:"source,omitempty"`
	// Inline is the ID that a pod's inline volume is called by.
	Inline string `json:"inline,omitempty"`
}

// Key is the volume's ID.
func (v Volume) Key() string { return v.ID }

// Left is the volume while it is being removed.
func (v Volume) Left() Volume { v.State = Removing; return v }

// Check says what cannot be.
func (v Volume) Check() error { return errors.Join(v.State.check(), v.Content.check()) }

// Snapshot is a snapshot.
type Snapshot struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	State   State     `json:"state"`
	Volume  string    `json:"volume"`
	Group   string    `json:"group,omitempty"`
	Created time.Time `json:"created"`
	Content
}

// Key is the snapshot's ID.
func (s Snapshot) Key() string { return s.ID }

// Left is the snapshot while it is being removed.
func (s Snapshot) Left() Snapshot { s.State = Removing; return s }

// Check says what cannot be.
func (s Snapshot) Check() error { return errors.Join(s.State.check(), s.Content.check()) }

// Group is a snapshot of several volumes at one moment.
type Group struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	State     State     `json:"state"`
	Volumes   []string  `json:"volumes"`
	Snapshots []string  `json:"snapshots"`
	Created   time.Time `json:"created"`
}

// Key is the group's ID.
func (g Group) Key() string { return g.ID }

// Left is the group while it is being removed.
func (g Group) Left() Group { g.State = Removing; return g }

// Check says what cannot be.
func (g Group) Check() error { return g.State.check() }

// Use is where a volume is mounted, since the machine was started.
type Use struct {
	Volume string `json:"volume"`
	// Type and Block are the volume's, by which it is unmounted though its own record cannot be read.
	Type    string            `json:"type,omitempty"`
	Block   bool              `json:"block,omitempty"`
	Staging string            `json:"staging,omitempty"`
	Staged  Mount             `json:"staged"`
	Frozen  bool              `json:"frozen,omitempty"` // for a snapshot
	Targets map[string]Target `json:"targets,omitempty"`
}

// Mount is how a volume is staged.
type Mount struct {
	Flags []string `json:"flags,omitempty"`
	Group string   `json:"group,omitempty"`
}

// Target is how a volume is published.
type Target struct {
	ReadOnly bool     `json:"readOnly,omitempty"`
	Mode     int32    `json:"mode"`
	Flags    []string `json:"flags,omitempty"`
}

// Key is the volume's ID.
func (u Use) Key() string { return u.Volume }

// Left is what is left of a use.
func (u Use) Left() Use { return Use{Volume: u.Volume, Type: u.Type, Block: u.Block} }

// Check says what cannot be.
func (u Use) Check() error {
	if u.Type != "" && !slices.Contains(types, u.Type) {
		return fmt.Errorf("it has the type %q", u.Type)
	}
	return nil
}

// Package provision has CSI drivers make the volumes and snapshots that this node's claims ask for, and delete them
// when nobody wants them any more: what a cluster has controllers for.
//
// Each volume and snapshot has one record, which is on the disk before its driver is called, and has all that is needed
// to call it with the same arguments again. Its name comes from the claim's UID, so that a call whose answer was lost
// finds what it made. Nothing is deleted before its claim was missing for the whole grace while an agent ran and
// looked: until then the claim, put back, has its data.
package provision

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/node"
)

// Drivers are those of the node.
type Drivers interface {
	Get(name string) (*csi.Driver, error)
	Subscribe(func(csi.Event)) (end func())
}

// Node is who has the volumes on this node.
type Node interface {
	Users(driver, handle string) []node.Pod
	// Unreadable says why it is not known who uses a volume.
	Unreadable(driver, handle string) error
	Expand(context.Context, node.Expansion) (int64, error)
}

// Config is what a [Manager] works with.
type Config struct {
	Dir     string // of the records
	Drivers Drivers
	Node    Node
	// Labels are the node's: with what a driver says of the node they are where it is.
	Labels map[string]string
	// Grace is how long a claim has to be missing before its volume is deleted.
	Grace time.Duration
	// Secret reads a Secret.
	Secret func(namespace, name string) (map[string]string, error)
	// Changed is called when there is something new about a volume or snapshot. It must not wait.
	Changed func(Kind, Ref)
	// Event is called with what has come of volumes and snapshots. It must not wait.
	Event func(Event)
	Log   *slog.Logger
	Now   func() time.Time // [time.Now]
}

// Ref names an object.
type Ref struct{ Namespace, Name string }

// String is namespace/name.
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// AccessMode is how a volume may be used.
type AccessMode = csi.AccessMode

// UID is that of a claim whose object has none: the same for the same names, and another one on another node.
func UID(names ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(names, "\x00")))
	u := hex.EncodeToString(sum[:16])
	return strings.Join([]string{u[:8], u[8:12], u[12:16], u[16:20], u[20:]}, "-")
}

// Kind is what a driver makes: a volume, a snapshot, or snapshots of several volumes at one moment.
type Kind string

// The kinds.
const (
	Volume   Kind = "volume"
	Snapshot Kind = "snapshot"
	Group    Kind = "groupsnapshot"
)

// Class is what counts of a StorageClass or a VolumeSnapshotClass.
type Class struct {
	Name   string `json:"name"`
	Driver string `json:"driver"`
	// Parameters are those of the object, with the ones that are not the driver's (csi.storage.k8s.io/...).
	Parameters map[string]string `json:"parameters,omitempty"`
	// Retain has what was made stay when its claim is gone.
	Retain bool `json:"retain,omitempty"`
	// Of volumes.
	Expandable   bool     `json:"expandable,omitempty"`
	MountOptions []string `json:"mountOptions,omitempty"`
	// Topologies are where volumes may be made, as one of them says, by key; none: anywhere.
	Topologies []map[string][]string `json:"topologies,omitempty"`
}

// Source is what a volume is made of, or a snapshot is of: one of these. Claims and snapshots by name are of the same
// namespace.
type Source struct {
	Claim          string `json:"claim,omitempty"`
	Snapshot       string `json:"snapshot,omitempty"`
	VolumeHandle   string `json:"volumeHandle,omitempty"`
	SnapshotHandle string `json:"snapshotHandle,omitempty"`
}

// Claim is a volume or snapshot that somebody wants to have.
type Claim struct {
	Ref
	UID         string            `json:"uid"`
	Class       Class             `json:"class"`
	Annotations map[string]string `json:"-"` // which names of Secrets may be made of
	Source      Source            `json:"source,omitzero"`
	// Waits says that nothing is made yet, since no pod needs it (WaitForFirstConsumer). It counts only until it is
	// made.
	Waits bool `json:"-"`
	// Held says that there is such a claim, for which nothing is to be made: its class is gone, or it names another
	// volume. What was made for it before stays as it is.
	Held bool `json:"-"`
	// Ephemeral ones are of a pod, and go with it: they have no grace.
	Ephemeral bool `json:"ephemeral,omitempty"`

	// Of volumes.
	Bytes       int64             `json:"bytes,omitempty"` // at least
	Limit       int64             `json:"limit,omitempty"` // at most; 0: any
	Block       bool              `json:"block,omitempty"`
	AccessModes []node.AccessMode `json:"accessModes,omitempty"`
	Attributes  Attributes        `json:"attributes,omitzero"`

	// Members are the claims, of the same namespace, that a group snapshot is of.
	Members []string `json:"members,omitempty"`
}

// Attributes are what counts of a VolumeAttributesClass, by which a volume that is there is changed.
type Attributes struct {
	Class      string            `json:"class,omitempty"`
	Driver     string            `json:"driver,omitempty"` // "": there is no such class
	Parameters map[string]string `json:"parameters,omitempty"`
}

// Member is one volume of a group snapshot, and its snapshot.
type Member struct {
	Claim  string `json:"claim"`
	Volume string `json:"volume"`           // its handle
	Handle string `json:"handle,omitempty"` // of its snapshot
	Bytes  int64  `json:"bytes,omitempty"`
}

// Handle names what somebody else says there is, as a PersistentVolume of a manifest: it is not deleted, whoever it was
// made for.
type Handle struct {
	Kind           Kind
	Driver, Handle string
}

// name is what the driver is to call it.
func (c *Claim) name(k Kind) string {
	switch k {
	case Snapshot:
		return "snapshot-" + c.UID
	case Group:
		return "groupsnapshot-" + c.UID
	}
	return "pvc-" + c.UID
}

// State is a volume, a snapshot or a group of them, made or not.
type State struct {
	Kind  Kind
	Name  string
	Claim Claim // as it was last
	// Handle is the driver's; "": it is not made yet. The others are what the driver says.
	Handle  string
	Bytes   int64
	Context map[string]string
	Ready   bool // it can be used
	Created time.Time
	Secrets Secrets
	FSType  string
	// Attributes is the class that a volume has been changed by last, "": none; Members are those of a group snapshot.
	Attributes string
	Members    []Member

	Missing  bool          // the claim is gone
	Left     time.Duration // until it is deleted then, while an agent runs; 0: it stays
	Stays    bool          // nothing is deleted though the claim is gone
	Deleting bool
	Error    string // of what was tried last
}

// Secrets names those of a volume's calls by the parameters of its class.
type Secrets struct {
	Provisioner       Ref `json:"provisioner,omitzero"`
	ControllerPublish Ref `json:"controllerPublish,omitzero"`
	NodeStage         Ref `json:"nodeStage,omitzero"`
	NodePublish       Ref `json:"nodePublish,omitzero"`
	ControllerExpand  Ref `json:"controllerExpand,omitzero"`
	NodeExpand        Ref `json:"nodeExpand,omitzero"`
	ControllerModify  Ref `json:"controllerModify,omitzero"`
}

// reserved is what the names of parameters begin with that are not the driver's.
const reserved = "csi.storage.k8s.io/"

// split parts the parameters of a class: the driver's own, the names of Secrets, the file system.
func split(k Kind, c *Claim) (own map[string]string, s Secrets, fstype string, err error) {
	own = map[string]string{}
	rest := maps.Clone(c.Class.Parameters)
	refs := map[string]*Ref{
		"provisioner-secret": &s.Provisioner, "controller-publish-secret": &s.ControllerPublish, "node-stage-secret": &s.NodeStage,
		"node-publish-secret": &s.NodePublish, "controller-expand-secret": &s.ControllerExpand, "node-expand-secret": &s.NodeExpand,
		"controller-modify-secret": &s.ControllerModify,
	}
	switch k {
	case Snapshot:
		refs = map[string]*Ref{"snapshotter-secret": &s.Provisioner, "snapshotter-list-secret": {}}
	case Group:
		refs = map[string]*Ref{"group-snapshotter-secret": &s.Provisioner, "group-snapshotter-get-secret": {}}
	}
	for _, key := range slices.Sorted(maps.Keys(refs)) {
		name, hasName := rest[reserved+key+"-name"]
		space, hasSpace := rest[reserved+key+"-namespace"]
		delete(rest, reserved+key+"-name")
		delete(rest, reserved+key+"-namespace")
		if hasName != hasSpace {
			return nil, s, "", fmt.Errorf("parameters %s%s-name and -namespace: both are needed, or none", reserved, key)
		}
		if !hasName {
			continue
		}
		if *refs[key], err = c.secretRef(k, name, space); err != nil {
			return nil, s, "", fmt.Errorf("parameter %s%s: %w", reserved, key, err)
		}
	}
	for name, value := range rest {
		short, ours := strings.CutPrefix(name, reserved)
		switch {
		case !ours:
			own[name] = value
		case short == "fstype" && k == Volume:
			fstype = value
		default:
			return nil, s, "", fmt.Errorf("parameter %s is not known", name)
		}
	}
	return own, s, fstype, nil
}

// secretRef fills in what a name of a Secret is made of.
func (c *Claim) secretRef(k Kind, name, namespace string) (Ref, error) {
	object, made := "pvc", "pv"
	switch k {
	case Snapshot:
		object, made = "volumesnapshot", "volumesnapshotcontent"
	case Group:
		object, made = "volumegroupsnapshot", "volumegroupsnapshotcontent"
	}
	with := map[string]string{object + ".namespace": c.Namespace, made + ".name": c.name(k)}
	space, err := expand(namespace, with)
	if err != nil {
		return Ref{}, err
	}
	with[object+".name"] = c.Name
	if k == Volume {
		for key, value := range c.Annotations {
			with["pvc.annotations['"+key+"']"] = value
		}
	}
	name, err = expand(name, with)
	if err == nil && (name == "" || space == "") {
		err = errors.New("it names no Secret")
	}
	return Ref{space, name}, err
}

// expand replaces each ${...} of a text.
func expand(text string, with map[string]string) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		value, known := with[name]
		if !closed || !known {
			return "", fmt.Errorf("${%s} is not known", csi.Text(name))
		}
		out.WriteString(value)
		text = after
	}
}

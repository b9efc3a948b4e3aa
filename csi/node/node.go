// Package node makes the volumes of CSI drivers on this node, and takes them away again: each is staged once, published
// for every pod, and undone after the last.
//
// Each volume has one record, which says what is to be undone, and is on the disk before anything of it is done. What
// of it is known to be done is in a note beside the record, which counts until the machine starts again: without it
// everything is done once more, which the specification has drivers stand.
package node

import (
	"context"
	"log/slog"

	"github.com/berth-node/berth/csi"
)

// Config is what a [Manager] works with.
type Config struct {
	// Root is the agent's root directory: drivers mount in <Root>/plugins/kubernetes.io/csi and in the pods'
	// directories.
	Root    string
	Records string       // where the records are; "": <Root>/csi
	Drivers *csi.Drivers // those of the node
	Node    string       // the node's name
	Boot    string       // the machine's boot ID; "": what the kernel says
	// Secret reads a Secret, for the detaching of volumes; nil: there are none.
	Secret func(SecretRef) (map[string]string, error)
	Log    *slog.Logger
}

// Pod is who uses a volume.
type Pod struct {
	Namespace, Name, UID, ServiceAccount string
}

// AccessMode is how a volume may be used.
type AccessMode = csi.AccessMode

// The access modes.
const (
	ReadWriteOnce    = csi.ReadWriteOnce
	ReadOnlyMany     = csi.ReadOnlyMany
	ReadWriteMany    = csi.ReadWriteMany
	ReadWriteOncePod = csi.ReadWriteOncePod
)

// Secrets are those of each call. They are in no record, and in no log.
type Secrets struct {
	Stage, Publish, ControllerPublish, NodeExpand map[string]string
}

// Volume is what a volume is, whichever pod uses it.
type Volume struct {
	Driver     string
	Handle     string // as the driver knows it; "" of an ephemeral one: made of the pod and the volume's name
	Name       string // of its PersistentVolume, or what the pod calls it that it is ephemeral of
	Ephemeral  bool   // it is the pod's own, and lives as long (an inline volume)
	Block      bool   // a device, without a file system
	AccessMode AccessMode
	FSType     string
	MountFlags []string
	Attributes map[string]string // the volume's context
}

// SecretRef names a Secret.
type SecretRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Request is a volume that a pod is to have.
type Request struct {
	Volume
	Pod      Pod
	PodDir   string // the pod's directory: <Root>/pods/<uid>, without links
	ReadOnly bool   // the pod must not write
	PodInfo  bool   // the driver wants to know of the pod (podInfoOnMount)
	// Group is who the files are to belong to, where the driver does that by itself (VOLUME_MOUNT_GROUP); nil: nobody
	// in particular.
	Group *int64
	// Attached says that the driver is not to be asked to attach it: nobody has to (attachRequired).
	Attached bool
	// AttachSecret is where Secrets.ControllerPublish is from: it is read again when the volume is detached. Its name
	// alone is recorded.
	AttachSecret SecretRef
	// Complete, where it is set, adds what has to be asked for first, once the driver is to be called for the volume:
	// Tokens and PublishContext.
	Complete func(context.Context, *Request) error
	// PublishContext is what the controller has said of the attachment, where somebody else has asked it.
	PublishContext map[string]string
	// Tokens are those of the pod's service account as JSON, for the driver; "": none. They go with the volume's
	// context, or, when TokensInSecrets, with the secrets of publishing.
	Tokens          string
	TokensInSecrets bool
	Secrets         Secrets
	// Republish has the driver publish a volume again that is published (requiresRepublish).
	Republish bool
	// Size is what the volume has when the pod gets it, in bytes, as far as it is known; 0: it is not.
	Size int64
	// Expand is what it is to have on the node, in bytes, which is due as long as pods have it; 0: what it has.
	Expand int64
}

// Published is a volume that a pod has.
type Published struct {
	Path  string // of a directory, or of the device's file; the same after each start of the agent
	Group bool   // the driver has given the files to the group
	Fresh bool   // it was published by this call
}

// Expansion is a volume that is to have another size on the node.
type Expansion struct {
	Driver, Handle string
	Name           string // of the PersistentVolume
	Bytes          int64  // at least
	Limit          int64  // at most; 0: any
	// Held says that it is for the pods that have the volume: with none of them nothing is due any more.
	Held    bool
	Secrets map[string]string
}

// Usage is what a volume has of something: bytes or inodes. -1: the driver does not say.
type Usage struct{ Available, Total, Used int64 }

// Condition is what the driver says of a volume's health.
type Condition struct {
	Known    bool
	Abnormal bool
	Reason   string // DEGRADED, INACCESSIBLE, DATA_LOSS; "": it says none
	Message  string
}

// Stats are the statistics of a volume.
type Stats struct {
	Bytes, Inodes Usage
	Condition     Condition
}

// Use is a pod's use of a volume.
type Use struct {
	Pod       Pod
	PodDir    string
	Name      string // of the directory: the PersistentVolume's, or the pod's own name of it
	Path      string
	ReadOnly  bool
	Published bool // else it is half done
}

// State is what there is of a volume on the node.
type State struct {
	Driver, Handle, Name string
	Ephemeral, Block     bool
	AccessMode           AccessMode
	StagePath            string // "": the driver does not stage
	Staged, Attached     bool
	Size                 int64 // by the driver that has expanded it here, or as its pod has got it; 0: not known
	ExpansionDue         int64 // bytes; 0: none
	Uses                 []Use
	Error                string // of what was tried last; "": it did
}

// What a [Finding] can be.
const (
	Orphan   = "orphan"    // a mount that no record tells of
	HalfDone = "half-done" // what was begun, and is not known to be done
	Missing  = "missing"   // a mount that is not there any more
	Unused   = "unused"    // a volume that no pod has
	Damaged  = "damaged"   // a record that cannot be read
	Hanging  = "hanging"   // an act of the kernel that does not come to an end
)

// Finding is what is otherwise than the records say.
type Finding struct {
	What           string // [Orphan] and the others
	Driver, Handle string // "": not known
	Path           string
	Pod            string // UID
	Text           string
	CanUndo        bool // [Manager.Undo] can
}

package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
)

// Volumes tells of the volumes of CSI drivers, and takes back or deletes those whose claim is gone.
type Volumes interface {
	State(ctx context.Context) VolumeState
	Check(ctx context.Context) ([]VolumeFinding, error)
	// Undo has drivers take away what Check finds of which no record tells, and says what has come of it.
	Undo(ctx context.Context) ([]VolumeFinding, error)
	// Decide has what was made for a claim that is gone stay, or be deleted at once. kind is volume, snapshot or
	// groupsnapshot.
	Decide(kind, namespace, name string, keep bool) error
	// Abandon has pods that go be rid of a volume that its driver does not take away.
	Abandon(driver, handle string) error
}

// VolumeState is all there is of CSI drivers on the node.
type VolumeState struct {
	Drivers []VolumeDriver `json:"drivers"`
	Claims  []VolumeClaim  `json:"claims"`
	Mounts  []VolumeMount  `json:"mounts"`
}

// VolumeDriver is a driver that is registered, or that wants to be and is refused.
type VolumeDriver struct {
	Name         string              `json:"name"`
	Endpoint     string              `json:"endpoint"`
	Version      string              `json:"version,omitempty"`
	Connected    bool                `json:"connected"`
	NodeID       string              `json:"nodeID,omitempty"` // what it knows this node by
	Volumes      int                 `json:"volumes"`          // how many of its volumes pods have
	MaxVolumes   *int64              `json:"maxVolumes"`       // nil: as many as one likes
	Topology     map[string]string   `json:"topology,omitempty"`
	Capabilities map[string][]string `json:"capabilities,omitempty"`
	Refused      string              `json:"refused,omitempty"` // why it is not registered
}

// VolumeClaim is what is made for a claim, or a snapshot.
type VolumeClaim struct {
	Kind      string `json:"kind"` // volume, snapshot or groupsnapshot
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`
	Name      string `json:"name"` // that the driver was told
	Class     string `json:"class"`
	Driver    string `json:"driver"`
	Handle    string `json:"handle,omitempty"`
	Bytes     int64  `json:"bytes,omitempty"`
	Status    string `json:"status"` // Pending, Ready, Missing, Kept or Deleting
	Left      string `json:"left,omitempty"`
	Error     string `json:"error,omitempty"`
	// Attributes is the VolumeAttributesClass that a volume was changed by, and Members what a group snapshot has.
	Attributes string         `json:"attributes,omitempty"`
	Members    []VolumeMember `json:"members,omitempty"`
}

// VolumeMember is the snapshot of one claim that a group snapshot has.
type VolumeMember struct {
	Claim    string `json:"claim"`
	Snapshot string `json:"snapshot"` // the name by which it is the source of a claim
	Handle   string `json:"handle,omitempty"`
	Bytes    int64  `json:"bytes,omitempty"`
}

// VolumeMount is a volume on the node, and who has it.
type VolumeMount struct {
	Driver   string      `json:"driver"`
	Name     string      `json:"name"`
	Handle   string      `json:"handle"`
	Mode     string      `json:"accessMode,omitempty"`
	Block    bool        `json:"block,omitempty"`
	Stage    string      `json:"stage,omitempty"`
	Staged   bool        `json:"staged"`
	Attached bool        `json:"attached,omitempty"`
	Pods     []VolumeUse `json:"pods"`
	Error    string      `json:"error,omitempty"`
	// What its driver says of it, where it does, and answers in time: how much there is, and what is the matter with
	// it, "" when it is well.
	Capacity int64  `json:"capacityBytes,omitempty"`
	Used     *int64 `json:"usedBytes,omitempty"`
	Healthy  *bool  `json:"healthy,omitempty"`
	Health   string `json:"health,omitempty"`
}

// VolumeUse is a pod's use of a volume.
type VolumeUse struct {
	Pod       string `json:"pod"` // namespace/name
	UID       string `json:"uid"`
	Path      string `json:"path"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
	Published bool   `json:"published"`
}

// VolumeFinding is what is otherwise than the records say.
type VolumeFinding struct {
	What   string `json:"what"`
	Driver string `json:"driver,omitempty"`
	Handle string `json:"handle,omitempty"`
	Path   string `json:"path,omitempty"`
	Pod    string `json:"pod,omitempty"`
	Text   string `json:"text"`
	// CanUndo says that the driver of an orphan can be asked to take it away, and Undone that it has.
	CanUndo bool `json:"canUndo,omitempty"`
	Undone  bool `json:"undone,omitempty"`
}

type volumes struct{ node Volumes }

func (v *volumes) state(w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, v.node.State(r.Context()))
}

func (v *volumes) check(w http.ResponseWriter, r *http.Request) error {
	all, err := v.node.Check(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, all)
}

// undo has drivers take away what nobody knows of.
func (v *volumes) undo(w http.ResponseWriter, r *http.Request) error {
	all, err := v.node.Undo(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, all)
}

// decide keeps (POST) or deletes (DELETE) what was made for a claim that is gone.
func (v *volumes) decide(w http.ResponseWriter, r *http.Request) error {
	kind, keep := r.PathValue("kind"), r.Method == http.MethodPost
	if !slices.Contains([]string{"volume", "snapshot", "groupsnapshot"}, kind) {
		return badRequest("kind: %q must be volume, snapshot or groupsnapshot", kind)
	}
	if err := v.node.Decide(kind, r.PathValue("ns"), r.PathValue("claim"), keep); err != nil {
		return asBadRequest(err)
	}
	return writeJSON(w, struct{}{})
}

// asBadRequest is err as that of a request which cannot be done, unless it is that of something which is not there.
func asBadRequest(err error) error {
	if _, said := errors.AsType[*failure](err); said {
		return err
	}
	return badRequest("%v", err)
}

// abandon has pods that go not wait for the driver of a volume.
func (v *volumes) abandon(w http.ResponseWriter, r *http.Request) error {
	if err := v.node.Abandon(r.URL.Query().Get("driver"), r.URL.Query().Get("handle")); err != nil {
		return asBadRequest(err)
	}
	return writeJSON(w, struct{}{})
}

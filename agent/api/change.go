package api

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/berth-node/berth/internal/quantity"
)

// Changes are what can be added to a pod that is here, beside what its manifest says. Their errors are those of an API
// server.
type Changes interface {
	AddEphemeral(uid types.UID, list []corev1.EphemeralContainer) (*corev1.Pod, error)
	SetConditions(uid types.UID, set []corev1.PodCondition, remove []corev1.PodConditionType) (*corev1.Pod, error)
}

// patch is as much of a strategic merge patch of a pod as is taken: both of its lists are merged by key, as an API
// server merges them.
type patch struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Metadata   struct {
		Name      string    `json:"name,omitempty"`
		Namespace string    `json:"namespace,omitempty"`
		UID       types.UID `json:"uid,omitempty"`
	} `json:"metadata"`
	Spec struct {
		EphemeralContainers []corev1.EphemeralContainer `json:"ephemeralContainers,omitempty"`
		Order               json.RawMessage             `json:"$setElementOrder/ephemeralContainers,omitempty"`
	} `json:"spec"`
	Status struct {
		Conditions []conditionPatch `json:"conditions,omitempty"`
		Order      json.RawMessage  `json:"$setElementOrder/conditions,omitempty"`
	} `json:"status"`
}

type conditionPatch struct {
	corev1.PodCondition `json:",inline"`

	Directive string `json:"$patch,omitempty"`
}

const strategicMerge = "application/strategic-merge-patch+json"

// changer adds to pods what is asked for.
type changer struct {
	pods    lookup
	changes Changes
}

// read returns the request's pod with what is to be changed of it.
func (c *changer) read(r *http.Request) (*corev1.Pod, *patch, error) {
	p, err := c.pods.find(r)
	if err != nil {
		return nil, nil, err
	}
	in, err := parsePatch(r, p)
	return p, in, err
}

func parsePatch(r *http.Request, p *corev1.Pod) (*patch, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != strategicMerge && kind != "application/json" {
		return nil, &failure{
			http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			fmt.Sprintf("Content-Type %q: what changes a pod is of the type %s", r.Header.Get("Content-Type"), strategicMerge),
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxPatch))
	if err != nil {
		return nil, badRequest("read patch: %v", err)
	}
	out := &patch{}
	if errs := quantity.CheckJSON(body, out); len(errs) > 0 {
		return nil, badRequest("read patch: %v", errs.ToAggregate())
	}
	strict, err := kjson.UnmarshalStrict(body, out)
	switch {
	case err != nil:
		return nil, badRequest("read patch: %v", err)
	case len(strict) > 0:
		return nil, badRequest("read patch: %v, which cannot be changed here", strict[0])
	case out.Metadata.UID != "" && out.Metadata.UID != p.UID:
		return nil, &failure{
			http.StatusConflict, "Conflict",
			fmt.Sprintf("metadata.uid: pod %s has the UID %s now", p.Name, p.UID),
		}
	}
	return out, nil
}

// maxPatch is what an API server takes in one request.
const maxPatch = 3 << 20

// ephemeral is the subresource ephemeralcontainers of a pod.
func (c *changer) ephemeral(w http.ResponseWriter, r *http.Request) error {
	p, in, err := c.read(r)
	if err != nil {
		return err
	}
	if len(in.Status.Conditions) > 0 {
		return badRequest("status.conditions are changed under status")
	}
	p, err = c.changes.AddEphemeral(p.UID, in.Spec.EphemeralContainers)
	if err != nil {
		return err
	}
	return writeJSON(w, typed(p))
}

// status is the subresource status of a pod, of which others than the agent have conditions.
func (c *changer) status(w http.ResponseWriter, r *http.Request) error {
	p, in, err := c.read(r)
	if err != nil {
		return err
	}
	if len(in.Spec.EphemeralContainers) > 0 {
		return badRequest("spec.ephemeralContainers are changed under ephemeralcontainers")
	}
	var set []corev1.PodCondition
	var remove []corev1.PodConditionType
	for i, c := range in.Status.Conditions {
		switch c.Directive {
		case "", "merge", "replace":
			set = append(set, c.PodCondition)
		case "delete":
			remove = append(remove, c.Type)
		default:
			return badRequest("status.conditions[%d].$patch: %q is none of %s", i, c.Directive,
				strings.Join([]string{"delete", "merge", "replace"}, ", "))
		}
	}
	p, err = c.changes.SetConditions(p.UID, set, remove)
	if err != nil {
		return err
	}
	return writeJSON(w, typed(p))
}

package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// unwantedSince is the annotation of an attachment that is not wanted, on a node that may have it mounted. Nothing else
// in the API tells since when: the pod is gone, and its node may have been silent for long before. Without it a node
// would have its time anew with each start of the control plane, and the volume's next user wait as long.
const unwantedSince = "attachdetach.berth-node.io/unwanted-since"

// since is a time, and whether the API has it.
type since struct {
	at       time.Time
	recorded bool
}

// noted is what an attachment says. A time that is to come says nothing: the node would never have its volume taken.
func noted(at *storagev1.VolumeAttachment, now time.Time) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339, at.Annotations[unwantedSince])
	return t, err == nil && !t.After(now)
}

// remember notes which attachments of a node are not wanted, and since when, with those that count down in the API,
// before anything comes of it.
func (a *attacher) remember(ctx context.Context, s state, now time.Time) error {
	var failed []error
	for name, at := range s.present {
		_, wanted := s.wanted[name]
		t, there := noted(at, now)
		a.mu.Lock()
		known, counts := a.unwanted[name]
		switch {
		case wanted && at.Annotations[unwantedSince] == "":
			delete(a.unwanted, name)
		case wanted:
			a.unwanted[name] = since{} // what it says counts no more, also where that is not taken away yet
		case counts && known.at.IsZero():
			known = from(now)
		case !counts && there:
			known = since{t, true}
		case !counts:
			known = from(now)
		}
		if !wanted {
			a.unwanted[name] = known
		}
		a.mu.Unlock()
		switch {
		case at.DeletionTimestamp != nil:
		case wanted && at.Annotations[unwantedSince] != "":
			failed = append(failed, a.annotate(ctx, at, nil))
		case !wanted && !known.recorded && s.counting(name, known.at, now):
			err := a.annotate(ctx, at, known.at.UTC().Format(time.RFC3339))
			if failed = append(failed, err); err == nil {
				a.mu.Lock()
				a.unwanted[name] = since{known.at, true}
				a.mu.Unlock()
			}
		}
	}
	return errors.Join(failed...)
}

// from is since when what is not wanted now is not. The API has whole seconds: the next one, so that no node has less
// time than it is given.
func from(now time.Time) since { return since{now.Add(time.Second - 1).Truncate(time.Second), false} }

// counting says whether time alone has an attachment detached.
func (s state) counting(name string, at, now time.Time) bool {
	force, left := s.forced(at, now)
	return !force && left > 0 && s.inUse(s.volumes[name])
}

// since says since when an attachment is not wanted.
func (a *attacher) since(now time.Time) func(string) time.Time {
	return func(name string) time.Time {
		a.mu.Lock()
		defer a.mu.Unlock()
		if known, there := a.unwanted[name]; there {
			return known.at
		}
		return now
	}
}

// annotate writes, or with nil removes, the annotation.
func (a *attacher) annotate(ctx context.Context, at *storagev1.VolumeAttachment, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": at.UID, "annotations": map[string]any{unwantedSince: value}}})
	if err == nil {
		_, err = a.d.Client.StorageV1().VolumeAttachments().Patch(ctx, at.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("note since when attachment %s is not wanted: %w", at.Name, err)
	}
	return nil
}

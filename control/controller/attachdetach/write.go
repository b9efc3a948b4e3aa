package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/control/controller"
)

// do does what is planned for a node. A volume is out of the node's status before it is detached: from then on the node
// does not mount it, and its answer says whether it had by then.
func (a *attacher) do(ctx context.Context, s state, p plan) (time.Duration, error) {
	var failed []error
	for _, name := range p.attach {
		failed = append(failed, a.attach(ctx, s, name))
	}
	for _, name := range p.refused {
		a.tell(s, name, multiAttach(s, name, a))
	}
	for name, w := range s.wanted {
		if at := s.present[name]; at != nil && at.Status.AttachError != nil && !at.Status.Attached {
			a.tell(s, name, fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", w.volume.Name, at.Status.AttachError.Message))
		}
	}
	written, err := a.report(ctx, s, p)
	if err != nil {
		return 0, errors.Join(append(failed, err)...)
	}
	if written != nil {
		s.node = written
	}
	for _, name := range p.detach {
		if s.inUse(s.volumes[name]) {
			continue // it was mounted a moment ago: the change of the node that said so is on its way here
		}
		failed = append(failed, a.detach(ctx, s, name))
	}
	for _, name := range p.force {
		a.d.Log.Warn("volume is detached from a node that may have it mounted", "node", s.name, "volume", s.volumes[name].Name)
		failed = append(failed, a.detach(ctx, s, name))
	}
	return p.again, errors.Join(failed...)
}

// attach asks for a volume to be attached. Its name says what for, so that it is asked for once.
func (a *attacher) attach(ctx context.Context, s state, name string) error {
	v := s.wanted[name].volume
	at := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: v.Spec.CSI.Driver, NodeName: s.name,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
		},
	}
	// It counts before the informer tells of it; that may be before the answer is here.
	a.mu.Lock()
	a.made[name] = at
	a.mu.Unlock()
	_, err := a.d.Client.StorageV1().VolumeAttachments().Create(ctx, at, metav1.CreateOptions{})
	if err == nil {
		return nil
	}
	a.mu.Lock()
	delete(a.made, name)
	a.mu.Unlock()
	return fmt.Errorf("attach volume %s to node %s: %w", v.Name, s.name, err)
}

func (a *attacher) detach(ctx context.Context, s state, name string) error {
	err := a.d.Client.StorageV1().VolumeAttachments().Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.present[name].UID},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("detach volume %s from node %s: %w", s.volumes[name].Name, s.name, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.unwanted, name)
	delete(a.told, name)
	return nil
}

// report has a node's status say what is attached to it, and the pods hear of what is now. It returns the node as the
// API has it: also where nothing changes, if volumes are to be detached, since what the cache knows may be old.
func (a *attacher) report(ctx context.Context, s state, p plan) (*corev1.Node, error) {
	if s.node == nil {
		return nil, nil
	}
	before := slices.Clone(s.node.Status.VolumesAttached)
	slices.SortFunc(before, func(a, b corev1.AttachedVolume) int { return strings.Compare(string(a.Name), string(b.Name)) })
	if slices.Equal(before, p.attached) {
		if len(p.detach) == 0 {
			return nil, nil
		}
		n, err := a.d.Client.CoreV1().Nodes().Get(ctx, s.name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("find node %s: %w", s.name, err)
		}
		if err != nil {
			return nil, nil
		}
		return n, nil
	}
	status := map[string]any{"volumesAttached": p.attached}
	if len(p.attached) == 0 {
		status["volumesAttached"] = nil
	}
	// The UID keeps it from a node that was made again under the name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": s.node.UID}, "status": status})
	if err != nil {
		return nil, fmt.Errorf("say what is attached to node %s: %w", s.name, err)
	}
	n, err := a.d.Client.CoreV1().Nodes().Patch(ctx, s.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("say what is attached to node %s: %w", s.name, err)
	}
	for _, w := range s.wanted {
		is := func(v corev1.AttachedVolume) bool { return v.Name == uniqueName(w.volume) }
		if !slices.ContainsFunc(p.attached, is) || slices.ContainsFunc(before, is) {
			continue
		}
		for _, pod := range w.pods {
			a.d.Events.Eventf(pod, corev1.EventTypeNormal, "SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume %q ", w.volume.Name)
		}
	}
	return n, nil
}

// tell tells the pods of a volume why it is not attached, once for each reason.
func (a *attacher) tell(s state, name, message string) {
	a.mu.Lock()
	known := a.told[name] == message
	a.told[name] = message
	a.mu.Unlock()
	if known {
		return
	}
	for _, p := range s.wanted[name].pods {
		a.d.Events.Event(p, corev1.EventTypeWarning, "FailedAttachVolume", message)
	}
}

// multiAttach says who has a volume that a node may not have meanwhile: pods of its own namespace by their names.
func multiAttach(s state, name string, a *attacher) string {
	v := s.wanted[name].volume
	var pods []string
	if ref := v.Spec.ClaimRef; ref != nil {
		for _, p := range controller.UsersOf(a.pods, ref.Namespace, ref.Name) {
			if slices.Contains(s.elsewhere[name], p.Spec.NodeName) && !hasEnded(p) {
				pods = append(pods, p.Name)
			}
		}
	}
	if len(pods) == 0 {
		return fmt.Sprintf("Multi-Attach error for volume %q Volume is already exclusively attached to one node and can't be attached to another", v.Name)
	}
	slices.Sort(pods)
	return fmt.Sprintf("Multi-Attach error for volume %q Volume is already used by pod(s) %s", v.Name, strings.Join(pods, ", "))
}

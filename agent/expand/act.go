package expand

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/node"
)

// The reasons of events, as kubelet has them.
const (
	reasonExpanded = "FileSystemResizeSuccessful"
	reasonFailed   = "VolumeResizeFailed"
)

// act is one try to expand a volume. Each step can be repeated: whoever is killed in between begins again with what
// claim and volume say then.
type act struct {
	x       *Expander
	key     id
	claim   *corev1.PersistentVolumeClaim
	volume  *corev1.PersistentVolume
	verdict verdict
	has     int64 // bytes of the volume
	pods    []node.Pod
	again   bool // the driver has failed before, for good

	past []string // versions of the claim that were changed
}

// outcome is what has come of an act.
type outcome struct {
	key     id
	err     error
	until   time.Time // when to try again; zero: as long after as others
	final   bool      // the driver has failed for good
	refused bool      // and not while the volume is in use

	past   []string
	latest *corev1.PersistentVolumeClaim // nil: it was not changed
}

// run does it, and hands in what has come of it.
func (a *act) run(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, actWithin)
	defer cancel()
	o := a.do(within)
	o.key, o.past = a.key, a.past
	if len(a.past) > 0 {
		o.latest = a.claim
	}
	select {
	case <-ctx.Done():
	case a.x.done <- o:
	}
}

func (a *act) do(ctx context.Context) outcome {
	if a.verdict.mark && statusOf(a.claim) != corev1.PersistentVolumeClaimNodeResizeInProgress {
		if err := a.say(ctx, began()); err != nil {
			return a.unsaid(err)
		}
	}
	size, err := a.expand(ctx)
	switch {
	case err != nil:
		return a.failed(ctx, err)
	case size == 0: // the pods have gone meanwhile
		return outcome{}
	}
	if a.verdict.tell {
		if err := a.say(ctx, ended(a.claim, a.volume)); err != nil {
			return a.unsaid(err)
		}
	}
	a.x.cfg.Log.Info("volume is expanded on the node", "driver", a.key.driver, "handle", a.key.handle, "claim", a.name(), "bytes", size)
	text := fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", a.volume.Name, a.x.cfg.Node)
	a.tell(corev1.EventTypeNormal, reasonExpanded, text)
	a.x.cfg.Events.Object(a.reference(), corev1.EventTypeNormal, reasonExpanded, "%s", text)
	return outcome{}
}

// expand has the driver do it, unless it has.
func (a *act) expand(ctx context.Context) (int64, error) {
	if a.has >= a.verdict.bytes {
		return a.has, nil
	}
	secrets, err := a.secrets()
	if err != nil {
		return 0, err
	}
	return a.x.cfg.Volumes.Expand(ctx, node.Expansion{
		Driver: a.key.driver, Handle: a.key.handle, Name: a.volume.Name, Bytes: a.verdict.bytes, Held: true, Secrets: secrets,
	})
}

func (a *act) secrets() (map[string]string, error) {
	ref := a.volume.Spec.CSI.NodeExpandSecretRef
	if ref == nil || ref.Name == "" {
		return nil, nil
	}
	namespace := ref.Namespace
	if namespace == "" {
		namespace = a.claim.Namespace
	}
	s, err := a.x.cfg.Objects.Secret(namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s of the driver: %w", namespace, ref.Name, err)
	}
	return csi.Secrets(s.Data), nil
}

// say changes the claim.
func (a *act) say(ctx context.Context, s status) error {
	patch, err := encode(a.claim, s)
	if err != nil {
		return err
	}
	claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	key := types.NamespacedName{Namespace: a.claim.Namespace, Name: a.claim.Name}
	var got corev1.PersistentVolumeClaim
	err = a.x.cfg.Client.Patch(ctx, claims, key, types.MergePatchType, patch, &got, "status")
	if apierrors.IsConflict(err) { // the next try is about the claim as it is
		var now corev1.PersistentVolumeClaim
		if a.x.cfg.Client.Get(ctx, claims, key, &now) == nil {
			_ = a.learn(&now) // another of its name is none of this act's
		}
	}
	if err == nil {
		err = a.learn(&got)
	}
	if err != nil {
		return fmt.Errorf("patch status of claim %s: %w", a.name(), err)
	}
	return nil
}

// learn takes the claim as the API server has it now.
func (a *act) learn(now *corev1.PersistentVolumeClaim) error {
	if now.UID != a.claim.UID {
		return fmt.Errorf("the answer is of a claim with UID %q", now.UID)
	}
	a.past = append(a.past, a.claim.ResourceVersion)
	a.claim = now
	return nil
}

// unsaid is the outcome where the API server has not taken what the claim is to say.
func (a *act) unsaid(err error) outcome {
	a.log(err)
	return outcome{err: err}
}

// failed is the outcome where the driver has not expanded the volume.
func (a *act) failed(ctx context.Context, err error) outcome {
	o := outcome{err: err}
	if b, ok := errors.AsType[*node.Backoff](err); ok { // as was told then
		o.until = b.Until
		return o
	}
	if errors.Is(err, csi.ErrNotRegistered) || ctx.Err() != nil {
		return o
	}
	a.log(err)
	a.tell(corev1.EventTypeWarning, reasonFailed,
		fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", a.volume.Name, err))
	if !csi.Final(err) {
		return o
	}
	code := csi.CodeOf(err)
	o.final, o.refused = true, code == codes.FailedPrecondition
	if !a.verdict.tell {
		return o
	}
	infeasible := code == codes.InvalidArgument || code == codes.OutOfRange || code == codes.NotFound
	// Who asks for another size by now has the controller see to it.
	if a.again && bytesOf(a.claim.Spec.Resources.Requests) != a.verdict.bytes {
		infeasible = true
	}
	if s, news := failed(a.claim, "failed to expand the volume on the node: "+err.Error(), infeasible, metav1.Now()); news {
		if err := a.say(ctx, s); err != nil {
			a.log(err)
			return o
		}
	}
	if infeasible {
		a.forget(ctx)
	}
	return o
}

// forget has the volume be given to pods as it is.
func (a *act) forget(ctx context.Context) {
	_, err := a.x.cfg.Volumes.Expand(ctx, node.Expansion{Driver: a.key.driver, Handle: a.key.handle, Name: a.volume.Name, Held: true})
	if err != nil {
		a.log(err)
	}
}

// tell records an event of each pod that has the volume.
func (a *act) tell(typ, reason, text string) {
	for _, p := range a.pods {
		a.x.cfg.Events.Object(corev1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID),
		}, typ, reason, "%s", text)
	}
}

func (a *act) reference() corev1.ObjectReference {
	return corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: a.claim.Namespace, Name: a.claim.Name, UID: a.claim.UID,
		ResourceVersion: a.claim.ResourceVersion,
	}
}

func (a *act) name() string { return a.claim.Namespace + "/" + a.claim.Name }

func (a *act) log(err error) {
	a.x.cfg.Log.Warn("volume is not expanded on the node yet", "driver", a.key.driver, "handle", a.key.handle, "claim", a.name(), "error", err)
}

// Package history keeps the revisions of what pods are made of: which there were, as ControllerRevisions, which is the
// one of now, and which are too many.
package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller/owned"
)

// Keeper keeps the revisions of owners.
type Keeper struct {
	Client    kubernetes.Interface
	Revisions owned.Index[*appsv1.ControllerRevision]
	Writes    *owned.Writes
	Kind      schema.GroupVersionKind // of the owners
	Label     string                  // by which a revision says its hash
	Prints    *Prints
}

// Of is what a revision is of.
type Of struct {
	Owner      metav1.Object
	Selector   labels.Selector
	Template   *corev1.PodTemplateSpec
	Collisions int32 // how many hashes were others' already
	// Fresh reads the owner from the API.
	Fresh func(context.Context) (metav1.Object, error)
}

// ErrCollision says that another object has the name that a revision would have: its hash is to be another one.
var ErrCollision = errors.New("another revision has its name")

// Claim are the revisions of an owner, the oldest first.
func (k Keeper) Claim(ctx context.Context, o Of) ([]*appsv1.ControllerRevision, error) {
	all, err := owned.Claim[*appsv1.ControllerRevision]{
		Owner: o.Owner, Kind: k.Kind, Selector: o.Selector, Fresh: o.Fresh,
		Patch: func(ctx context.Context, r *appsv1.ControllerRevision, patch []byte) (*appsv1.ControllerRevision, error) {
			return k.Client.AppsV1().ControllerRevisions(r.Namespace).Patch(ctx, r.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		},
	}.Of(ctx, k.Revisions.Of(o.Owner.GetUID()), k.Revisions.Orphans(o.Owner.GetNamespace(), o.Selector))
	slices.SortFunc(all, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return all, err
}

// Now is the revision of what the owner's template is, made if there is none, or with the highest number if there was
// one before. It returns [ErrCollision] where the name is another object's.
func (k Keeper) Now(ctx context.Context, o Of, all []*appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	data, err := Data(o.Template)
	if err != nil {
		return nil, err
	}
	next := int64(1)
	if len(all) > 0 {
		newest := all[len(all)-1]
		if bytes.Equal(newest.Data.Raw, data) {
			return newest, nil
		}
		next = newest.Revision
		if next < math.MaxInt64 { // which anybody may have written
			next++
		}
	}
	like, err := k.like(o, len(all), data)
	if err != nil {
		return nil, err
	}
	// The newest of those that are alike is the one that pods were made of.
	for i, r := range slices.Backward(all) {
		if !like(r) {
			continue
		}
		if i == len(all)-1 || r.Revision == next {
			return r, nil
		}
		return k.renew(ctx, o.Owner, r, next)
	}
	return k.create(ctx, o, data, next)
}

// like says which of an owner's n revisions have the template of some data, however they are written.
func (k Keeper) like(o Of, n int, data []byte) (func(*appsv1.ControllerRevision) bool, error) {
	wanted, err := template(data)
	if err != nil {
		return nil, fmt.Errorf("read data of a revision: %w", err)
	}
	alike := k.Prints.Like(cache.MetaObjectToName(o.Owner), n, wanted)
	return func(r *appsv1.ControllerRevision) bool {
		return bytes.Equal(r.Data.Raw, data) || alike(r, func() *corev1.PodTemplateSpec {
			t, err := template(r.Data.Raw)
			if err != nil {
				return nil
			}
			return t
		})
	}, nil
}

// Forget is called when an owner is gone.
func (k Keeper) Forget(owner cache.ObjectName) {
	k.Writes.Forget(owner)
	k.Prints.Forget(owner)
}

// renew has a revision of before be the newest: a rollback.
func (k Keeper) renew(ctx context.Context, owner metav1.Object, r *appsv1.ControllerRevision, number int64) (*appsv1.ControllerRevision, error) {
	changed := r.DeepCopy()
	changed.Revision = number
	written, err := k.Client.AppsV1().ControllerRevisions(r.Namespace).Update(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update revision %s/%s: %w", r.Namespace, r.Name, err)
	}
	k.Writes.Wrote(cache.MetaObjectToName(owner), written)
	return written, nil
}

func (k Keeper) create(ctx context.Context, o Of, data []byte, number int64) (*appsv1.ControllerRevision, error) {
	hash := Hash(data, o.Collisions)
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Owner.GetNamespace(), Name: Name(o.Owner.GetName(), hash), Labels: maps.Clone(o.Template.Labels),
			Annotations: maps.Clone(o.Owner.GetAnnotations()), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(o.Owner, k.Kind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	r.Labels[k.Label] = hash
	made, err := k.Client.AppsV1().ControllerRevisions(r.Namespace).Create(ctx, r, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		has, err := k.Client.AppsV1().ControllerRevisions(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read revision %s/%s: %w", r.Namespace, r.Name, err)
		}
		// A crash, or a cache that is late, comes here with what was made before.
		if metav1.IsControlledBy(has, o.Owner) && Equal(has.Data.Raw, data) {
			return has, nil
		}
		return nil, fmt.Errorf("create revision %s/%s: %w", r.Namespace, r.Name, ErrCollision)
	}
	if err != nil {
		return nil, fmt.Errorf("create revision %s/%s: %w", r.Namespace, r.Name, err)
	}
	k.Writes.Wrote(cache.MetaObjectToName(o.Owner), made)
	return made, nil
}

// Truncate removes the oldest revisions that nothing is made of, but for so many.
func (k Keeper) Truncate(ctx context.Context, owner metav1.Object, all []*appsv1.ControllerRevision, live func(*appsv1.ControllerRevision) bool, keep int) error {
	var dead []*appsv1.ControllerRevision
	for _, r := range all {
		if !live(r) && r.DeletionTimestamp == nil {
			dead = append(dead, r)
		}
	}
	for _, r := range dead[:max(0, len(dead)-keep)] {
		err := k.Client.AppsV1().ControllerRevisions(r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete revision %s/%s: %w", r.Namespace, r.Name, err)
		}
		k.Writes.Ended(cache.MetaObjectToName(owner), r)
	}
	return nil
}

// Data is a template as a revision has it: as a patch of its owner, which kubectl rollout undo applies.
func Data(t *corev1.PodTemplateSpec) ([]byte, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encode template: %w", err)
	}
	var parts map[string]any
	if err := decode(text, &parts); err != nil {
		return nil, err
	}
	parts["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": parts}})
}

// Template is the template that a revision has.
func Template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	t, err := template(r.Data.Raw)
	if err != nil {
		return nil, fmt.Errorf("read revision %s/%s: %w", r.Namespace, r.Name, err)
	}
	return t, nil
}

func template(data []byte) (*corev1.PodTemplateSpec, error) {
	var patch struct {
		Spec struct {
			Template *corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	if patch.Spec.Template == nil {
		return nil, errors.New("it has no template")
	}
	return patch.Spec.Template, nil
}

// Equal says whether two revisions are of one template, however they are written.
func Equal(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	one, err := template(a)
	if err != nil {
		return false
	}
	other, err := template(b)
	return err == nil && equality.Semantic.DeepEqual(one, other)
}

func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // a float64 has not all digits of an int64
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("read data of a revision: %w", err)
	}
	return nil
}

// Hash is a short name of some data. It is another one for each number of collisions.
func Hash(data []byte, collisions int32) string {
	h := fnv.New32a()
	h.Write(data)
	if collisions > 0 {
		var b [8]byte
		binary.LittleEndian.PutUint32(b[:], uint32(collisions))
		h.Write(b[:])
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// nameLimit is of a name of an object, of which a hash takes at most ten characters and a dash.
const nameLimit = 253 - 11

// Name is the name of what an owner has for a hash.
func Name(owner, hash string) string {
	return owner[:min(len(owner), nameLimit)] + "-" + hash
}

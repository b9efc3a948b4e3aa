package object

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Store has the latest of each object. Its zero value is empty. It can be used by several goroutines; what it returns
// must not be changed.
type Store struct {
	served bool // by an API server, whose controllers bind claims, and allocate devices to them

	mu      sync.RWMutex
	objects map[Ref]Object
	// named are PersistentVolumes, by the claim that their spec.claimRef names and by name.
	named map[types.NamespacedName]map[string]*corev1.PersistentVolume
	// naming are claims, by the PersistentVolume that their spec.volumeName names.
	naming map[string]map[types.NamespacedName]bool
	// pending are the claims whose volume is being made, with what is to be said of it.
	pending map[types.NamespacedName]string
	// expected are the kinds of which not all are known yet.
	expected map[Kind]bool
	heard    []func(Ref) // see [Store.Subscribe]
}

// Subscribe has fn be called after each Put, by who has put: it must not wait. It is called before anything is put.
func (s *Store) Subscribe(fn func(Ref)) { s.heard = append(s.heard, fn) }

// Put makes o the object that ref names; nil: there is none any more.
func (s *Store) Put(ref Ref, o Object) {
	s.put(ref, o)
	for _, fn := range s.heard {
		fn(ref)
	}
}

func (s *Store) put(ref Ref, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch ref.Kind {
	case PersistentVolume:
		nameClaim(s, ref, o)
	case PersistentVolumeClaim:
		nameVolume(s, ref, o)
	}
	if o == nil {
		delete(s.objects, ref)
		return
	}
	if s.objects == nil {
		s.objects = map[Ref]Object{}
	}
	s.objects[ref] = o
}

// nameClaim keeps which claim names a volume, which is o from now on; the lock is held.
func nameClaim(s *Store, ref Ref, o Object) {
	if before, ok := s.objects[ref].(*corev1.PersistentVolume); ok && before.Spec.ClaimRef != nil {
		drop(s.named, claimOf(before), before.Name)
	}
	if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil {
		keep(&s.named, claimOf(v), v.Name, v)
	}
}

// nameVolume keeps which volume a claim names, which is o from now on; the lock is held.
func nameVolume(s *Store, ref Ref, o Object) {
	claim := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	if before, ok := s.objects[ref].(*corev1.PersistentVolumeClaim); ok {
		drop(s.naming, before.Spec.VolumeName, claim)
	}
	if c, ok := o.(*corev1.PersistentVolumeClaim); ok && c.Spec.VolumeName != "" {
		keep(&s.naming, c.Spec.VolumeName, claim, true)
	}
}

// keep has value be what a key has of a name.
func keep[K, N comparable, V any](index *map[K]map[N]V, key K, name N, value V) {
	if *index == nil {
		*index = map[K]map[N]V{}
	}
	if (*index)[key] == nil {
		(*index)[key] = map[N]V{}
	}
	(*index)[key][name] = value
}

// drop undoes keep; nothing is left of a key that has no names any more.
func drop[K, N comparable, V any](index map[K]map[N]V, key K, name N) {
	delete(index[key], name)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}

// claimants are the claims that name a volume, in order; the lock is held.
func claimants(s *Store, volume string) []string {
	var out []string
	for c := range s.naming[volume] {
		out = append(out, c.String())
	}
	slices.Sort(out)
	return out
}

func claimOf(v *corev1.PersistentVolume) types.NamespacedName {
	return types.NamespacedName{Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name}
}

// NotFound says that an object is missing, in the words of an API server.
type NotFound struct{ Ref Ref }

func (e *NotFound) Error() string {
	return fmt.Sprintf("%s %q not found", strings.ToLower(string(e.Ref.Kind)), e.Ref.Name)
}

func get[T Object](s *Store, k Kind, namespace, name string) (T, error) {
	ref := RefTo(k, namespace, name)
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, ok := s.objects[ref].(T)
	if !ok {
		return o, &NotFound{ref}
	}
	return o, nil
}

// ConfigMap fails with [NotFound], as do the methods below.
func (s *Store) ConfigMap(namespace, name string) (*corev1.ConfigMap, error) {
	return get[*corev1.ConfigMap](s, ConfigMap, namespace, name)
}

// Secret has its stringData in its data.
func (s *Store) Secret(namespace, name string) (*corev1.Secret, error) {
	return get[*corev1.Secret](s, Secret, namespace, name)
}

// RuntimeClass says which handler runs a pod, and what that costs.
func (s *Store) RuntimeClass(name string) (*nodev1.RuntimeClass, error) {
	return get[*nodev1.RuntimeClass](s, RuntimeClass, "", name)
}

// PriorityClass gives a pod's priority a name.
func (s *Store) PriorityClass(name string) (*schedulingv1.PriorityClass, error) {
	return get[*schedulingv1.PriorityClass](s, PriorityClass, "", name)
}

// CSIDriver says how the volumes of a driver are to be treated.
func (s *Store) CSIDriver(name string) (*storagev1.CSIDriver, error) {
	return get[*storagev1.CSIDriver](s, CSIDriver, "", name)
}

// VolumeAttachment says whether the volume of a driver is attached to the node.
func (s *Store) VolumeAttachment(name string) (*storagev1.VolumeAttachment, error) {
	return get[*storagev1.VolumeAttachment](s, VolumeAttachment, "", name)
}

// Services are those of a namespace, by name.
func (s *Store) Services(namespace string) []*corev1.Service {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []*corev1.Service
	for ref, o := range s.objects {
		if svc, ok := o.(*corev1.Service); ok && ref.Namespace == namespace {
			out = append(out, svc)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Service) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// DefaultPriority is the class of pods that name none: of those that want to be it, the one with the lowest value, as
// under an API server. nil: there is none.
func (s *Store) DefaultPriority() *schedulingv1.PriorityClass {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found *schedulingv1.PriorityClass
	for _, o := range s.objects {
		if c, ok := o.(*schedulingv1.PriorityClass); ok && c.GlobalDefault && (found == nil || c.Value < found.Value) {
			found = c
		}
	}
	return found
}

// Volume is what a claim is bound to. Nothing decides between volumes here, so the binding must be written down: in the
// claim (spec.volumeName) or in the volume (spec.claimRef), as in those that were made for their claims.
func (s *Store) Volume(namespace, claim string) (*corev1.PersistentVolume, error) {
	c, err := get[*corev1.PersistentVolumeClaim](s, PersistentVolumeClaim, namespace, claim)
	if err != nil {
		return nil, err
	}
	v, err := s.bound(c)
	if err != nil {
		return nil, fmt.Errorf("persistentvolumeclaim %q: %w", claim, err)
	}
	return v, nil
}

// Claimed is the PersistentVolume of a name, with the claim that it is bound to and that is bound to it.
func (s *Store) Claimed(volume string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	v, err := get[*corev1.PersistentVolume](s, PersistentVolume, "", volume)
	if err != nil {
		return nil, nil, err
	}
	if v.Spec.ClaimRef == nil {
		return nil, nil, fmt.Errorf("persistentvolume %q: no claim is bound to it", volume)
	}
	c, err := get[*corev1.PersistentVolumeClaim](s, PersistentVolumeClaim, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
	if err != nil {
		return nil, nil, err
	}
	bound, err := s.bound(c)
	if err == nil && bound != v {
		err = fmt.Errorf("persistentvolumeclaim %q: it is not bound to persistentvolume %q", c.Name, volume)
	}
	if err != nil {
		return nil, nil, err
	}
	return c, v, nil
}

func (s *Store) bound(c *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	if s.served {
		return servedVolume(s, c)
	}
	if c.Spec.VolumeName != "" {
		v, err := get[*corev1.PersistentVolume](s, PersistentVolume, "", c.Spec.VolumeName)
		if err != nil {
			return nil, err
		}
		if err := contested(s, v); err != nil {
			return nil, err
		}
		return v, fits(v, c)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	found := s.named[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}]
	names := slices.Sorted(maps.Keys(found))
	switch len(found) {
	case 0:
		if why := s.pending[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}]; why != "" {
			return nil, fmt.Errorf("not bound yet: %s", why)
		}
		return nil, fmt.Errorf("not bound: name a PersistentVolume in its spec.volumeName, or it in the spec.claimRef of one")
	case 1:
		return found[names[0]], fits(found[names[0]], c)
	}
	return nil, fmt.Errorf("spec.claimRef of both persistentvolume %q and %q names it: name one of them in its spec.volumeName", names[0], names[1])
}

// contested says that several claims name a volume which names none of them. One volume is one claim's: two would
// write each other's data.
func contested(s *Store, v *corev1.PersistentVolume) error {
	if v.Spec.ClaimRef != nil {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if by := claimants(s, v.Name); len(by) > 1 {
		return fmt.Errorf("spec.volumeName of both %s and %s names persistentvolume %q: name one of them in its spec.claimRef",
			by[0], by[1], v.Name)
	}
	return nil
}

// servedVolume is what a claim is bound to by both of them: a volume that was released and claimed again, and a claim
// that was deleted and made again, have their old names, and other UIDs.
func servedVolume(s *Store, c *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	if c.Spec.VolumeName == "" || c.Status.Phase != corev1.ClaimBound {
		return nil, fmt.Errorf("not bound yet")
	}
	v, err := get[*corev1.PersistentVolume](s, PersistentVolume, "", c.Spec.VolumeName)
	if err != nil {
		return nil, err
	}
	if r := v.Spec.ClaimRef; r == nil || r.UID != c.UID {
		return nil, fmt.Errorf("persistentvolume %q: it is not bound to this claim", v.Name)
	}
	return v, nil
}

// fits says why a claim cannot have a volume.
func fits(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("persistentvolume %q: %s", v.Name, fmt.Sprintf(format, args...))
	}
	if r := v.Spec.ClaimRef; r != nil && (r.Name != c.Name || r.Namespace != c.Namespace) {
		return bad("it is bound to %s/%s", r.Namespace, r.Name)
	}
	class := ""
	if c.Spec.StorageClassName != nil {
		class = *c.Spec.StorageClassName
	}
	if v.Spec.StorageClassName != class {
		return bad("its storageClassName is %q, and the claim's %q", v.Spec.StorageClassName, class)
	}
	for _, m := range c.Spec.AccessModes {
		if !slices.Contains(v.Spec.AccessModes, m) {
			return bad("it has no access mode %s", m)
		}
	}
	want, has := c.Spec.Resources.Requests[corev1.ResourceStorage], v.Spec.Capacity[corev1.ResourceStorage]
	if has.Cmp(want) < 0 {
		return bad("its capacity of %s is less than the %s that are claimed", has.String(), want.String())
	}
	if a, b := volumeMode(v.Spec.VolumeMode), volumeMode(c.Spec.VolumeMode); a != b {
		return bad("its volumeMode is %s, and the claim's %s", a, b)
	}
	return nil
}

func volumeMode(m *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if m == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *m
}

package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/berth-node/berth/agent/desired"
)

var podsResource = corev1.Resource("pods")

// server is an API server as far as the Writer can tell: versions, preconditions, grace. What it does to a call before
// or after it, a test decides.
type server struct {
	t *testing.T

	mu      sync.Mutex
	version int
	uids    int
	pods    map[types.NamespacedName]*corev1.Pod
	history []*corev1.Pod // every version of every pod
	calls   []string      // of those that write
	reads   int

	// before is asked before a call is done, which an error fails; after, whether the answer is lost.
	before func(ctx context.Context, verb string, key types.NamespacedName) error
	after  func(ctx context.Context, verb string, key types.NamespacedName) error
	// told hears of what a watch would tell of.
	told func(pod *corev1.Pod, gone bool)
}

func newServer(t *testing.T) *server {
	return &server{t: t, version: 100, pods: map[types.NamespacedName]*corev1.Pod{}}
}

// add has a pod come from somebody else, with its UID if it has one.
func (s *server) add(pod *corev1.Pod) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod = pod.DeepCopy()
	if pod.UID == "" {
		s.uids++
		pod.UID = types.UID(fmt.Sprintf("made-%d", s.uids))
	}
	s.store(pod)
	return pod
}

// change has somebody else change a pod.
func (s *server) change(key types.NamespacedName, by func(*corev1.Pod)) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := s.pods[key].DeepCopy()
	by(pod)
	s.store(pod)
	return pod
}

func (s *server) store(pod *corev1.Pod) {
	s.version++
	pod.ResourceVersion = strconv.Itoa(s.version)
	s.pods[keyOf(pod)] = pod
	s.history = append(s.history, pod)
	if s.told != nil {
		s.told(pod, false)
	}
}

func (s *server) get(key types.NamespacedName) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[key]
}

func (s *server) writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *server) call(ctx context.Context, verb string, key types.NamespacedName, do func() error) error {
	if s.before != nil {
		if err := s.before(ctx, verb, key); err != nil {
			return err
		}
	}
	s.mu.Lock()
	if verb == "list" {
		s.reads++
	} else {
		s.calls = append(s.calls, verb+" "+key.Name)
	}
	err := do()
	s.mu.Unlock()
	if s.after != nil {
		if lost := s.after(ctx, verb, key); lost != nil {
			return lost
		}
	}
	return err
}

func (s *server) find(key types.NamespacedName) (*corev1.Pod, error) {
	if p := s.pods[key]; p != nil {
		return p, nil
	}
	return nil, apierrors.NewNotFound(podsResource, key.Name)
}

// List implements [Client]: of one pod of the node.
func (s *server) List(ctx context.Context, _ schema.GroupVersionResource, namespace string, o metav1.ListOptions, into runtime.Object) error {
	selector, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		return err
	}
	name, _ := selector.RequiresExactMatch("metadata.name")
	if node, _ := selector.RequiresExactMatch("spec.nodeName"); node != "node" || name == "" {
		s.t.Errorf("list %s", o.FieldSelector)
	}
	key := types.NamespacedName{Namespace: namespace, Name: name}
	return s.call(ctx, "list", key, func() error {
		into.(*corev1.PodList).ResourceVersion = "1"
		if p := s.pods[key]; p != nil && p.Spec.NodeName == "node" {
			into.(*corev1.PodList).Items = []corev1.Pod{*p.DeepCopy()}
		}
		return nil
	})
}

// Create implements [Client].
func (s *server) Create(ctx context.Context, _ schema.GroupVersionResource, o interface {
	metav1.Object
	runtime.Object
}, into runtime.Object, _ ...string,
) error {
	pod := o.(*corev1.Pod).DeepCopy()
	return s.call(ctx, "create", keyOf(pod), func() error {
		if s.pods[keyOf(pod)] != nil {
			return apierrors.NewAlreadyExists(podsResource, pod.Name)
		}
		s.uids++
		pod.UID, pod.Status = types.UID(fmt.Sprintf("made-%d", s.uids)), corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort}
		s.store(pod)
		pod.DeepCopyInto(into.(*corev1.Pod))
		return nil
	})
}

// Patch implements [Client].
func (s *server) Patch(
	ctx context.Context, _ schema.GroupVersionResource, key types.NamespacedName, kind types.PatchType, data []byte,
	into runtime.Object, sub ...string,
) error {
	return s.call(ctx, "patch", key, func() error {
		if kind != types.StrategicMergePatchType || len(sub) != 1 || sub[0] != "status" {
			s.t.Errorf("patch %s of %v", kind, sub)
		}
		old, err := s.find(key)
		if err != nil {
			return err
		}
		before, err := json.Marshal(old)
		if err != nil {
			return err
		}
		after, err := strategicpatch.StrategicMergePatch(before, data, &corev1.Pod{})
		if err != nil {
			s.t.Errorf("patch %s: %v", data, err)
			return apierrors.NewBadRequest(err.Error())
		}
		var pod corev1.Pod
		if err := json.Unmarshal(after, &pod); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if pod.UID != old.UID || pod.ResourceVersion != old.ResourceVersion {
			return apierrors.NewConflict(podsResource, key.Name, fmt.Errorf("it is %s in version %s", old.UID, old.ResourceVersion))
		}
		if string(after) == string(before) {
			s.t.Errorf("patch %s changes nothing", data)
		}
		changed := old.DeepCopy()
		changed.Status = pod.Status
		s.store(changed)
		changed.DeepCopyInto(into.(*corev1.Pod))
		return nil
	})
}

// Delete implements [Client].
func (s *server) Delete(ctx context.Context, _ schema.GroupVersionResource, key types.NamespacedName, o metav1.DeleteOptions) error {
	return s.call(ctx, "delete", key, func() error {
		old, err := s.find(key)
		if err != nil {
			return err
		}
		if o.Preconditions == nil || o.Preconditions.UID == nil || o.Preconditions.ResourceVersion != nil || *o.GracePeriodSeconds != 0 {
			s.t.Errorf("delete with %v", o)
		}
		if *o.Preconditions.UID != old.UID {
			return apierrors.NewConflict(podsResource, key.Name, fmt.Errorf("it is %s", old.UID))
		}
		s.remove(key)
		return nil
	})
}

func (s *server) remove(key types.NamespacedName) {
	old := s.pods[key].DeepCopy()
	s.version++
	old.ResourceVersion = strconv.Itoa(s.version)
	delete(s.pods, key)
	if s.told != nil {
		s.told(old, true)
	}
}

// apiPod is one that the server has.
func apiPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name + "-uid"),
			Annotations: map[string]string{desired.AnnotationSource: string(desired.API)},
		},
		Spec:   corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "main", Image: "i"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort},
	}
}

// staticPod is one that a manifest asks for.
func staticPod(name, hash string) *corev1.Pod {
	pod := apiPod(name)
	pod.UID = types.UID(hash)
	pod.Annotations = maps.Clone(pod.Annotations)
	pod.Annotations[desired.AnnotationSource], pod.Annotations[desired.AnnotationHash] = string(desired.File), hash
	return pod
}

// liar is a server that answers with what it does not have.
type liar struct {
	*server
	lies int
}

// Patch implements [Client].
func (l *liar) Patch(
	ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, kind types.PatchType, data []byte,
	into runtime.Object, sub ...string,
) error {
	err := l.server.Patch(ctx, res, key, kind, data, into, sub...)
	if l.lies > 0 && err == nil {
		l.lies--
		*into.(*corev1.Pod) = corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "another", ResourceVersion: "999999"}}
	}
	return err
}

// List implements [Client].
func (l *liar) List(ctx context.Context, res schema.GroupVersionResource, namespace string, o metav1.ListOptions, into runtime.Object) error {
	if l.lies > 0 {
		l.lies--
		if l.lies%2 == 0 { // else it is what any JSON is read as
			list := into.(*corev1.PodList)
			list.ResourceVersion = "1"
			list.Items = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "another", ResourceVersion: "no number"}}}
		}
		return nil
	}
	return l.server.List(ctx, res, namespace, o, into)
}

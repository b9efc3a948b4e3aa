package expand

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/csi/node"
)

type origin struct{}

func (origin) Cluster() bool { return true }

// cluster is an API server with a claim, a node with its volume, and what is between them.
type cluster struct {
	t     *testing.T
	store *object.Store
	x     *Expander
	end   func()

	mu      sync.Mutex
	claim   *corev1.PersistentVolumeClaim
	volume  *corev1.PersistentVolume
	version int
	deaf    bool  // the node hears of no change
	away    error // of each call
	here    node.State
	fails   func(node.Expansion) error
	did     []string // by the node
	settled int
}

func quantities(text string) corev1.ResourceList {
	if text == "" {
		return nil
	}
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
}

// newCluster has a claim whose volume was expanded from 1Gi to 2Gi by the controller, and two pods that have it.
func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, store: new(object.Stores).Of(origin{}), end: func() {}}
	c.volume = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "v", ResourceVersion: "1"}}
	c.volume.Spec.Capacity = quantities("2Gi")
	c.volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}
	c.volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "c"}
	c.claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", UID: "c", ResourceVersion: "1"}}
	c.claim.Spec.VolumeName, c.claim.Spec.Resources.Requests = "pv", quantities("2Gi")
	c.claim.Status = corev1.PersistentVolumeClaimStatus{
		Phase: corev1.ClaimBound, Capacity: quantities("1Gi"), AllocatedResources: quantities("2Gi"),
		AllocatedResourceStatuses: map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending,
		},
		Conditions: []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue},
			{Type: "Other", Status: corev1.ConditionTrue},
		},
	}
	c.here = node.State{Driver: "d", Handle: "h", Size: 1 << 30}
	for _, name := range []string{"a", "b"} {
		c.here.Uses = append(c.here.Uses, node.Use{Pod: node.Pod{Namespace: "ns", Name: name, UID: name}, Name: "pv", Published: true})
	}
	c.show()
	return c
}

// show has the node hear of what there is.
func (c *cluster) show() {
	c.store.Put(object.RefTo(object.PersistentVolume, "", "pv"), c.volume)
	c.store.Put(object.RefTo(object.PersistentVolumeClaim, "ns", "claim"), c.claim.DeepCopy())
}

// start has the node begin, as after it was killed.
func (c *cluster) start() {
	c.end()
	c.x = New(Config{
		Volumes: c, Objects: c.store, Client: c, Events: c, Node: "node", OnNode: func(string) bool { return true },
		Settled: func() { c.settled++ }, // by the goroutine that is waited for
	})
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.x.Run(ctx) }()
	c.end = func() { cancel(); <-ended }
}

// List implements [Volumes].
func (c *cluster) List() []node.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return []node.State{c.here}
}

// Expand implements [Volumes].
func (c *cluster) Expand(_ context.Context, e node.Expansion) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	secret := ""
	for _, k := range slices.Sorted(maps.Keys(e.Secrets)) {
		secret += " " + k + "=" + e.Secrets[k]
	}
	c.did = append(c.did, fmt.Sprintf("expand %s %s %s %d%s", e.Driver, e.Handle, e.Name, e.Bytes>>20, secret))
	if !e.Held {
		c.t.Error("the expansion outlives the pods")
	}
	if e.Bytes == 0 {
		return c.here.Size, nil
	}
	if c.fails != nil {
		if err := c.fails(e); err != nil {
			return 0, err
		}
	}
	if len(c.here.Uses) == 0 {
		return 0, nil
	}
	c.here.Size = e.Bytes
	return e.Bytes, nil
}

// Get implements [Client].
func (c *cluster) Get(_ context.Context, _ schema.GroupVersionResource, key types.NamespacedName, into runtime.Object) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.did = append(c.did, "get "+key.Name)
	c.claim.DeepCopyInto(into.(*corev1.PersistentVolumeClaim))
	return nil
}

// Patch implements [Client].
func (c *cluster) Patch(
	_ context.Context, res schema.GroupVersionResource, key types.NamespacedName, kind types.PatchType, patch []byte,
	into runtime.Object, sub ...string,
) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away != nil {
		c.did = append(c.did, "away")
		return c.away
	}
	var given struct {
		Metadata identity
		Status   map[string]any
	}
	if err := json.Unmarshal(patch, &given); err != nil {
		c.t.Error(err)
	}
	if res.Resource != "persistentvolumeclaims" || key.String() != "ns/claim" || kind != types.MergePatchType || fmt.Sprint(sub) != "[status]" ||
		given.Metadata.UID != "c" {
		c.t.Errorf("patch of %s %s %v: %s", res, key, sub, patch)
	}
	if given.Metadata.ResourceVersion != c.claim.ResourceVersion {
		c.did = append(c.did, "conflict")
		return apierrors.NewConflict(res.GroupResource(), key.Name, errors.New("it was changed"))
	}
	text, _ := json.Marshal(given.Status)
	c.did = append(c.did, "patch "+string(text))
	now, err := json.Marshal(c.claim.Status)
	var all map[string]any
	if err = errors.Join(err, json.Unmarshal(now, &all)); err == nil {
		merge(all, given.Status)
		now, err = json.Marshal(all)
	}
	c.claim = c.claim.DeepCopy()
	c.claim.Status = corev1.PersistentVolumeClaimStatus{}
	if err = errors.Join(err, json.Unmarshal(now, &c.claim.Status)); err != nil {
		c.t.Error(err)
	}
	c.version++
	c.claim.ResourceVersion = fmt.Sprint("p", c.version)
	c.claim.DeepCopyInto(into.(*corev1.PersistentVolumeClaim))
	if !c.deaf {
		c.show()
		c.x.Look()
	}
	return nil
}

func merge(into, patch map[string]any) {
	for k, v := range patch {
		of, isMap := v.(map[string]any)
		old, wasMap := into[k].(map[string]any)
		switch {
		case v == nil:
			delete(into, k)
		case isMap && wasMap:
			merge(old, of)
		case isMap:
			into[k] = map[string]any{}
			merge(into[k].(map[string]any), of)
		default:
			into[k] = v
		}
	}
}

// Object implements [Events].
func (c *cluster) Object(of corev1.ObjectReference, _, reason, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := fmt.Sprintf(format, args...); !strings.Contains(text, `volume "pv"`) || of.UID == "" {
		c.t.Errorf("event of %+v: %s", of, text)
	}
	c.did = append(c.did, "event "+reason+" "+of.Name)
}

// said is what was done since it was asked last, once nothing goes on any more.
func (c *cluster) said(want ...string) {
	c.t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.did, want) {
		c.t.Errorf("the node did\n\t%s\nwant\n\t%s", strings.Join(c.did, "\n\t"), strings.Join(want, "\n\t"))
	}
	c.did = nil
}

func (c *cluster) change(how func()) {
	c.mu.Lock()
	how()
	c.version++
	c.claim = c.claim.DeepCopy()
	c.claim.ResourceVersion = fmt.Sprint("o", c.version)
	c.show()
	c.mu.Unlock()
	c.x.Look()
}

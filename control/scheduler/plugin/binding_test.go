package plugin_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cycle"
	"github.com/berth-node/berth/control/scheduler/plugin/volumebinding"
)

const (
	noneToBind   = "node(s) didn't find available persistent volumes to bind!"
	wrongNode    = "node(s) didn't match PersistentVolume's node affinity!"
	noSpace      = "node(s) did not have enough free storage!"
	noSuchVolume = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)!"

	waitingClass = `{metadata: {name: s}, provisioner: d, volumeBindingMode: WaitForFirstConsumer}`
	manualClass  = `{metadata: {name: s}, provisioner: kubernetes.io/no-provisioner, volumeBindingMode: WaitForFirstConsumer}`
	openClaim    = `{metadata: {name: c, uid: uc, resourceVersion: "1"}, ` + claimSpec + `}`
	claimSpec    = `spec: {storageClassName: s, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}`
	boundClaim   = `{metadata: {name: c, annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: v}}`
)

// volumeIn is a volume of the class that nodes of a zone have.
func volumeIn(name, size, zone string) string {
	return `{metadata: {name: ` + name + `}, status: {phase: Available}, spec: {storageClassName: s, accessModes: [ReadWriteOnce], capacity: {storage: ` + size + `},
		nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [` + zone + `]}]}]}}}}`
}

func volumeOf(t *testing.T, name, size, zone string) *corev1.PersistentVolume {
	return parse[corev1.PersistentVolume](t, volumeIn(name, size, zone))
}

func classOf(t *testing.T, text string) *storagev1.StorageClass {
	return parse[storagev1.StorageClass](t, text)
}

func TestVolumeBinding(t *testing.T) {
	both := func(message string) map[string]string { return map[string]string{"a1": message, "b1": message} }
	bound := func(volumes ...string) storage { return storage{claims: []string{boundClaim}, volumes: volumes} }
	open := func(class string, volumes ...string) storage {
		return storage{claims: []string{openClaim}, classes: []string{class}, volumes: volumes}
	}
	counted := func(capacities ...string) storage {
		s := open(waitingClass)
		s.drivers, s.capacities = []string{`{metadata: {name: d}, spec: {storageCapacity: true}}`}, capacities
		return s
	}
	claim := func(text string) storage { return storage{claims: []string{text}, classes: []string{waitingClass}} }
	inA := `nodeTopology: {matchLabels: {zone: a}}`
	for name, c := range map[string]volumeCase{
		"no claims":                {pod: `{}`},
		"claim missing":            {want: both(`persistentvolumeclaim "c" not found!`)},
		"bound, in a zone":         {storage: bound(volumeIn("v", "1Gi", "a")), want: map[string]string{"b1": wrongNode}},
		"bound, volume missing":    {storage: bound(), want: both(noSuchVolume)},
		"lost":                     {storage: claim(`{metadata: {name: c}, spec: {volumeName: v}, status: {phase: Lost}}`), want: both(`persistentvolumeclaim "c" bound to non-existent persistentvolume "v"!`)},
		"deleted":                  {storage: claim(`{metadata: {name: c, deletionTimestamp: "2026-01-01T00:00:00Z"}, ` + claimSpec + `}`), want: both(`persistentvolumeclaim "c" is being deleted!`)},
		"immediate":                {storage: open(`{metadata: {name: s}, volumeBindingMode: Immediate}`), want: both("pod has unbound immediate PersistentVolumeClaims!")},
		"class missing":            {storage: storage{claims: []string{openClaim}}, want: both("pod has unbound immediate PersistentVolumeClaims!")},
		"the binder is at it":      {storage: claim(`{metadata: {name: c}, spec: {volumeName: v, storageClassName: s}}`), want: both("pod has unbound immediate PersistentVolumeClaims!")},
		"not made yet":             {pod: `{spec: {volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {}}}}]}}`, want: both(`waiting for ephemeral volume controller to create the persistentvolumeclaim "new-v"!`)},
		"another's of that name":   {storage: claim(`{metadata: {name: new-v}, ` + claimSpec + `}`), pod: `{spec: {volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {}}}}]}}`, want: both(`PVC default/new-v was not created for pod default/new (pod is not owner)!`)},
		"a volume is there":        {storage: open(manualClass, volumeIn("v", "1Gi", "a")), want: map[string]string{"b1": noneToBind}},
		"it is too small":          {storage: open(manualClass, volumeIn("v", "1Mi", "a")), want: both(noneToBind)},
		"is to be made":            {storage: open(waitingClass)},
		"one is made elsewhere":    {storage: open(waitingClass, volumeIn("v", "1Gi", "a"))},
		"topology":                 {storage: open(`{metadata: {name: s}, provisioner: d, volumeBindingMode: WaitForFirstConsumer, allowedTopologies: [{matchLabelExpressions: [{key: zone, values: [b]}]}]}`), want: map[string]string{"a1": noneToBind}},
		"nobody makes any":         {storage: open(`{metadata: {name: s}, volumeBindingMode: WaitForFirstConsumer}`), want: both(noneToBind)},
		"for another node":         {storage: claim(`{metadata: {name: c, annotations: {volume.kubernetes.io/selected-node: b1}}, ` + claimSpec + `}`), want: map[string]string{"a1": noneToBind}},
		"no room is known of":      {storage: counted(), want: both(noSpace)},
		"room in one zone":         {storage: counted(`{storageClassName: s, capacity: 1Gi, ` + inA + `}`), want: map[string]string{"b1": noSpace}},
		"too little room":          {storage: counted(`{storageClassName: s, capacity: 1Mi, ` + inA + `}`), want: both(noSpace)},
		"none so large":            {storage: counted(`{storageClassName: s, capacity: 9Gi, maximumVolumeSize: 1Mi, ` + inA + `}`), want: both(noSpace)},
		"room of another class":    {storage: counted(`{storageClassName: t, capacity: 1Gi, ` + inA + `}`), want: both(noSpace)},
		"room that nobody reaches": {storage: counted(`{storageClassName: s, capacity: 1Gi}`), want: both(noSpace)},
		"one for two": {
			storage: storage{
				claims:  []string{openClaim, strings.Replace(openClaim, "name: c, uid: uc", "name: e, uid: ue", 1)},
				classes: []string{manualClass}, volumes: []string{volumeIn("v", "1Gi", "a")},
			},
			pod: claiming("", "c", "e"), want: both(noneToBind),
		},
	} {
		c.plugin, c.nodes = volumebinding.New, []string{a1, b1}
		if c.pod == "" {
			c.pod = claiming("", "c")
		}
		t.Run(name, c.run)
	}
}

// binding is the plugin on a cluster whose API the test has, with informers that run.
type binding struct {
	fwk.Plugin

	t      *testing.T
	w      *world
	client *fake.Clientset
	// written is told of what the plugin writes; it does so when the test reads of it.
	written chan runtime.Object
}

// newBinding makes it of a node of zone a and what else there is.
func newBinding(t *testing.T, objects ...runtime.Object) *binding {
	client := fake.NewClientset(append(objects, nodeOf(t, a1))...)
	b := &binding{t: t, client: client, written: make(chan runtime.Object, 8)}
	b.w = newWorld(nodesOf(t, []string{a1}), nil)
	b.w.client, b.w.objects = client, informers.NewSharedInformerFactory(client, 0)
	b.Plugin = make1(t, volumebinding.New, nil, b.w)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); b.w.objects.Shutdown() })
	b.w.objects.Start(ctx.Done())
	b.w.objects.WaitForCacheSync(ctx.Done())
	client.PrependReactor("update", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		b.written <- a.(k8stesting.UpdateAction).GetObject()
		return false, nil, nil
	})
	return b
}

// found has a pod with claims be placed on the node, as far as it takes none of what is there.
func (b *binding) found(pod *corev1.Pod) fwk.CycleState {
	b.t.Helper()
	state := cycle.NewState()
	if _, s := b.Plugin.(fwk.PreFilterPlugin).PreFilter(b.t.Context(), state, pod, b.w.infos(b.t)); !s.IsSuccess() {
		b.t.Fatal(s)
	}
	if s := b.Plugin.(fwk.FilterPlugin).Filter(b.t.Context(), state, pod, b.w.infos(b.t)[0]); !s.IsSuccess() {
		b.t.Fatal(s)
	}
	return state
}

func (b *binding) reserve(state fwk.CycleState, pod *corev1.Pod) *fwk.Status {
	return b.Plugin.(fwk.ReservePlugin).Reserve(b.t.Context(), state, pod, "a1")
}

// bind begins PreBind, which goes on until the claims are bound, and returns where its end is told of.
func (b *binding) bind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod) <-chan *fwk.Status {
	ended := make(chan *fwk.Status, 1)
	go func() { ended <- b.Plugin.(fwk.PreBindPlugin).PreBind(ctx, state, pod, "a1") }()
	return ended
}

// becomes is the claim as others write it, which the plugin then hears of.
func (b *binding) becomes(change func(*corev1.PersistentVolumeClaim)) {
	b.t.Helper()
	o, err := b.client.CoreV1().PersistentVolumeClaims("default").Get(b.t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	o.ResourceVersion += "1"
	change(o)
	if err := b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), o, "default"); err != nil {
		b.t.Fatal(err)
	}
}

func (b *binding) ends(ended <-chan *fwk.Status, want string) {
	b.t.Helper()
	s := <-ended
	if want == "" && !s.IsSuccess() || want != "" && (s.IsSuccess() || !strings.Contains(s.Message(), want)) {
		b.t.Errorf("it ends with %v, want %q", s, want)
	}
}

func boundTo(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName = name
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
}

// TestVolumeIsBound has PreBind write whose a volume is, and wait until the claim has it.
func TestVolumeIsBound(t *testing.T) {
	pod := podOf(t, claiming("", "c"))
	b := newBinding(t, claimFrom(t, openClaim), classOf(t, manualClass), volumeOf(t, "small", "1Gi", "a"), volumeOf(t, "large", "9Gi", "a"))
	state := b.found(pod)
	if s := b.reserve(state, pod); !s.IsSuccess() {
		t.Fatal(s)
	}
	if _, s := b.Plugin.(fwk.PreBindPlugin).PreBindPreFlight(t.Context(), state, pod, "a1"); !s.IsSuccess() {
		t.Errorf("it has nothing to do: %v", s)
	}
	ended := b.bind(t.Context(), state, pod)
	v := (<-b.written).(*corev1.PersistentVolume)
	if v.Name != "small" || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != "uc" {
		t.Errorf("it writes %s of %+v", v.Name, v.Spec.ClaimRef)
	}
	b.becomes(func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"of": "no use"} })
	b.becomes(boundTo("small"))
	b.ends(ended, "")
}

// TestVolumeIsMade has PreBind say for which node a volume is to be made, and end as what comes of it says.
func TestVolumeIsMade(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*binding, context.CancelFunc)
		want   string
	}{
		"made":         {func(b *binding, _ context.CancelFunc) { b.becomes(boundTo("here")) }, ""},
		"made, unseen": {func(b *binding, _ context.CancelFunc) { b.becomes(boundTo("unseen")) }, ""},
		"elsewhere": {
			func(b *binding, _ context.CancelFunc) { b.becomes(boundTo("there")) }, `pv "there" node affinity doesn't match node "a1"`,
		},
		"given up": {func(b *binding, _ context.CancelFunc) {
			b.becomes(func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, volume.AnnSelectedNode) })
		}, `provisioning failed for PVC "c"`},
		"another claim": {func(b *binding, _ context.CancelFunc) {
			b.becomes(func(c *corev1.PersistentVolumeClaim) { c.UID = "another" })
		}, "claim default/c is gone"},
		"the claim is gone": {func(b *binding, _ context.CancelFunc) {
			_ = b.client.CoreV1().PersistentVolumeClaims("default").Delete(b.t.Context(), "c", metav1.DeleteOptions{})
		}, "claim default/c is gone"},
		"cancelled": {func(_ *binding, cancel context.CancelFunc) { cancel() }, context.Canceled.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOf(t, claiming("", "c"))
			// Volumes that are others' already, until the claim says that they are its own.
			b := newBinding(t, claimFrom(t, openClaim), classOf(t, waitingClass), volumeOf(t, "here", "1Mi", "a"), volumeOf(t, "there", "1Mi", "b"))
			state := b.found(pod)
			if s := b.reserve(state, pod); !s.IsSuccess() {
				t.Fatal(s)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := b.bind(ctx, state, pod)
			o := (<-b.written).(*corev1.PersistentVolumeClaim)
			if on := o.Annotations[volume.AnnSelectedNode]; on != "a1" || len(b.written) > 0 {
				t.Errorf("the volume is to be made for %q", on)
			}
			c.change(b, cancel)
			b.ends(ended, c.want)
		})
	}
}

// TestVolumeConflict has another writer come between: the pod is tried again, and what it was to have is free.
func TestVolumeConflict(t *testing.T) {
	pod := podOf(t, claiming("", "c"))
	b := newBinding(t, claimFrom(t, openClaim), classOf(t, manualClass), volumeOf(t, "v", "1Gi", "a"))
	state := b.found(pod)
	if s := b.reserve(state, pod); !s.IsSuccess() {
		t.Fatal(s)
	}
	conflict := apierrors.NewConflict(corev1.Resource("persistentvolumes"), "v", errors.New("it was changed"))
	b.client.PrependReactor("update", "persistentvolumes", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, conflict })
	b.ends(b.bind(t.Context(), state, pod), "bind volume v")
	if _, s := b.Plugin.(fwk.PreBindPlugin).PreBindPreFlight(t.Context(), cycle.NewState(), pod, "a1"); !s.IsSkip() {
		t.Errorf("a pod without claims has something to do: %v", s)
	}
	b.Plugin.(fwk.ReservePlugin).Unreserve(t.Context(), state, pod, "a1")
	if s := b.reserve(b.found(pod), pod); !s.IsSuccess() {
		t.Errorf("the volume is not free: %v", s)
	}
}

// TestVolumeOfTwo has two pods find the same volume at a time: one gets it, and the other one finds it taken.
func TestVolumeOfTwo(t *testing.T) {
	one, two := podOf(t, claiming("", "c")), podOf(t, claiming("", "e"))
	b := newBinding(t, claimFrom(t, openClaim), claimFrom(t, strings.Replace(openClaim, "name: c, uid: uc", "name: e, uid: ue", 1)),
		classOf(t, manualClass), volumeOf(t, "v", "1Gi", "a"))
	of := []fwk.CycleState{b.found(one), b.found(two)}
	if s := b.reserve(of[0], one); !s.IsSuccess() {
		t.Fatal(s)
	}
	if s := b.reserve(of[1], two); s.IsSuccess() || !strings.Contains(s.Message(), "another pod's claim has it") {
		t.Errorf("the second has it, too: %v", s)
	}
	// What was not taken is not given back.
	b.Plugin.(fwk.ReservePlugin).Unreserve(t.Context(), of[1], two, "a1")
	if got := verdicts(t, b.Plugin, b.w, two); got["a1"] != noneToBind {
		t.Errorf("the second finds %v", got)
	}
	b.Plugin.(fwk.ReservePlugin).Unreserve(t.Context(), of[0], one, "a1")
	if got := verdicts(t, b.Plugin, b.w, two); len(got) > 0 {
		t.Errorf("it is free, and the second finds %v", got)
	}
}

package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/claims"
	"github.com/berth-node/berth/control/scheduler/cycle"
	"github.com/berth-node/berth/control/scheduler/plugin/dynamicresources"
)

const (
	notOnNode  = "resourceclaim not available on the node!"
	cannotAll  = "cannot allocate all claims!"
	wants      = `spec: {devices: {requests: [{name: r, exactly: {deviceClassName: k, allocationMode: ExactCount, count: 1}}]}}`
	openDevice = `{metadata: {name: c, uid: uc}, ` + wants + `}`
	classK     = `{metadata: {name: k}}`
	// A device of a1.
	given = `allocation: {devices: {results: [{request: r, driver: d, pool: a1, device: d0}]},
		nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [a1]}]}]}}`
)

// offered are so many devices of a node.
func offered(t *testing.T, node string, count int) *resourcev1.ResourceSlice {
	var all []string
	for i := range count {
		all = append(all, fmt.Sprintf("{name: d%d}", i))
	}
	return parse[resourcev1.ResourceSlice](t, fmt.Sprintf(`{metadata: {name: of-%[1]s}, spec: {driver: d, nodeName: %[1]s,
		pool: {name: %[1]s, generation: 1, resourceSliceCount: 1}, devices: [%[2]s]}}`, node, strings.Join(all, ", ")))
}

func deviceClaim(t *testing.T, text string) *resourcev1.ResourceClaim {
	c := parse[resourcev1.ResourceClaim](t, text)
	c.Namespace = "default"
	return c
}

// using is a pod that uses claims.
func using(t *testing.T, name string, names ...string) *corev1.Pod {
	var all []string
	for _, n := range names {
		all = append(all, fmt.Sprintf("{name: %[1]s, resourceClaimName: %[1]s}", n))
	}
	return podOf(t, fmt.Sprintf("{metadata: {name: %s}, spec: {resourceClaims: [%s]}}", name, strings.Join(all, ", ")))
}

// devices is the plugin on a cluster of two nodes, whose API the test has, with informers that run.
type devices struct {
	fwk.Plugin

	t      *testing.T
	w      *world
	client *fake.Clientset
}

func newDevices(t *testing.T, objects ...runtime.Object) *devices {
	t.Helper()
	d := &devices{t: t, client: fake.NewClientset(objects...), w: newWorld(nodesOf(t, []string{a1, b1}), nil)}
	d.w.client, d.w.objects = d.client, informers.NewSharedInformerFactory(d.client, 0)
	m, err := claims.New(d.w.objects)
	if err != nil {
		t.Fatal(err)
	}
	d.w.devices = m
	d.Plugin = make1(t, dynamicresources.New, nil, d.w)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); d.w.objects.Shutdown() })
	d.w.objects.Start(ctx.Done())
	d.w.objects.WaitForCacheSync(ctx.Done())
	return d
}

// found has a pod be placed on a1, as far as it takes none of what is there.
func (d *devices) found(pod *corev1.Pod) fwk.CycleState {
	d.t.Helper()
	state := cycle.NewState()
	if _, s := d.Plugin.(fwk.PreFilterPlugin).PreFilter(d.t.Context(), state, pod, d.w.infos(d.t)); !s.IsSuccess() {
		d.t.Fatal(s)
	}
	for _, n := range d.w.infos(d.t) {
		if s := d.Plugin.(fwk.FilterPlugin).Filter(d.t.Context(), state, pod, n); n.Node().Name == "a1" && !s.IsSuccess() {
			d.t.Fatal(s)
		}
	}
	return state
}

func (d *devices) reserve(state fwk.CycleState, pod *corev1.Pod) *fwk.Status {
	return d.Plugin.(fwk.ReservePlugin).Reserve(d.t.Context(), state, pod, "a1")
}

func (d *devices) unreserve(state fwk.CycleState, pod *corev1.Pod) {
	d.Plugin.(fwk.ReservePlugin).Unreserve(d.t.Context(), state, pod, "a1")
}

func (d *devices) bind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod) *fwk.Status {
	return d.Plugin.(fwk.PreBindPlugin).PreBind(ctx, state, pod, "a1")
}

// claim is one as the API has it.
func (d *devices) claim(name string) *resourcev1.ResourceClaim {
	d.t.Helper()
	c, err := d.client.ResourceV1().ResourceClaims("default").Get(d.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	return c
}

func reservedFor(c *resourcev1.ResourceClaim) (all []types.UID) {
	for _, r := range c.Status.ReservedFor {
		all = append(all, r.UID)
	}
	return all
}

// TestDevicesEnqueue has pods wait for their claims out of the queue.
func TestDevicesEnqueue(t *testing.T) {
	fromTemplate := func(status string) *corev1.Pod {
		return podOf(t, `{spec: {resourceClaims: [{name: c, resourceClaimTemplateName: t}]}, status: {`+status+`}}`)
	}
	of := `resourceClaimStatuses: [{name: c, resourceClaimName: c}]`
	for name, c := range map[string]struct {
		claim string
		pod   *corev1.Pod
		want  string
	}{
		"no claims":     {openDevice, podOf(t, `{}`), ""},
		"there":         {openDevice, using(t, "p", "c"), ""},
		"not there":     {openDevice, using(t, "p", "e"), `resourceclaim.resource.k8s.io "e" not found!`},
		"deleted":       {`{metadata: {name: c, deletionTimestamp: "2026-01-01T00:00:00Z", finalizers: [f]}, ` + wants + `}`, using(t, "p", "c"), `resourceclaim "c" is being deleted!`},
		"not made yet":  {openDevice, fromTemplate(""), `pod "default/new": ResourceClaim not created yet!`},
		"another pod's": {openDevice, fromTemplate(of), "was not created for Pod default/new"},
		"none is made":  {openDevice, fromTemplate(`resourceClaimStatuses: [{name: c}]`), ""},
		"its own": {
			`{metadata: {name: c, ownerReferences: [{apiVersion: v1, kind: Pod, name: new, uid: default/new, controller: true}]}, ` + wants + `}`,
			fromTemplate(of), "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDevices(t, deviceClaim(t, c.claim))
			s := d.Plugin.(fwk.PreEnqueuePlugin).PreEnqueue(t.Context(), c.pod)
			if c.want == "" && !s.IsSuccess() || c.want != "" && !strings.Contains(verdict(s), c.want) {
				t.Errorf("it says %q, want %q", verdict(s), c.want)
			}
		})
	}
}

// TestDevicesFilter has nodes that have the devices of a claim, can have them, and cannot.
func TestDevicesFilter(t *testing.T) {
	var users []string
	for i := range resourcev1.ResourceClaimReservedForMaxSize {
		users = append(users, fmt.Sprintf("{resource: pods, name: p%[1]d, uid: u%[1]d}", i))
	}
	full := `reservedFor: [` + strings.Join(users, ", ") + `]`
	both := func(message string) map[string]string { return map[string]string{"a1": message, "b1": message} }
	for name, c := range map[string]struct {
		claims []string
		pod    *corev1.Pod
		want   map[string]string
	}{
		"no claims":        {nil, podOf(t, `{}`), nil},
		"claim missing":    {nil, using(t, "p", "c"), both(`resourceclaim.resource.k8s.io "c" not found!`)},
		"a device is free": {[]string{openDevice}, using(t, "p", "c"), map[string]string{"b1": cannotAll}},
		"too many": {
			[]string{strings.Replace(openDevice, "count: 1", "count: 2", 1)}, using(t, "p", "c"), both(cannotAll),
		},
		"class missing": {
			[]string{strings.Replace(openDevice, "Name: k", "Name: none", 1)}, using(t, "p", "c"), both("request r: device class none does not exist!"),
		},
		"given":         {[]string{`{metadata: {name: c, uid: uc}, ` + wants + `, status: {` + given + `}}`}, using(t, "p", "c"), map[string]string{"b1": notOnNode}},
		"in use by all": {[]string{`{metadata: {name: c, uid: uc}, ` + wants + `, status: {` + given + `, ` + full + `}}`}, using(t, "p", "c"), both("resourceclaim in use!")},
		"another's": {
			[]string{openDevice, `{metadata: {name: e, uid: ue}, ` + wants + `, status: {` + given + `}}`}, using(t, "p", "c"), both(cannotAll),
		},
		"two for one": {[]string{openDevice, `{metadata: {name: e, uid: ue}, ` + wants + `}`}, using(t, "p", "c", "e"), both(cannotAll)},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{offered(t, "a1", 1), parse[resourcev1.DeviceClass](t, classK)}
			for _, text := range c.claims {
				objects = append(objects, deviceClaim(t, text))
			}
			d := newDevices(t, objects...)
			if got := verdicts(t, d.Plugin, d.w, c.pod); show(got) != show(c.want) {
				t.Errorf("got  %s\nwant %s", show(got), show(c.want))
			}
		})
	}
}

// TestDevicesReserved has what one pod is to get be nobody else's, until it is given back.
func TestDevicesReserved(t *testing.T) {
	d := newDevices(t, offered(t, "a1", 1), parse[resourcev1.DeviceClass](t, classK), deviceClaim(t, openDevice),
		deviceClaim(t, `{metadata: {name: e, uid: ue}, `+wants+`}`))
	one, two, other := using(t, "one", "c"), using(t, "two", "c"), using(t, "other", "e")
	state := d.found(one)
	if s := d.reserve(state, one); !s.IsSuccess() {
		t.Fatal(s)
	}
	if got := verdicts(t, d.Plugin, d.w, other); got["a1"] != cannotAll {
		t.Errorf("another claim finds %v", got)
	}
	// Who uses the same claim goes where its devices are, and has it stay so when the first one gives up.
	shared := d.found(two)
	if got := verdicts(t, d.Plugin, d.w, two); got["b1"] != notOnNode {
		t.Errorf("the same claim finds %v", got)
	}
	if s := d.reserve(shared, two); !s.IsSuccess() {
		t.Fatal(s)
	}
	d.unreserve(state, one)
	if got := verdicts(t, d.Plugin, d.w, other); got["a1"] != cannotAll {
		t.Errorf("another claim finds %v after the first pod", got)
	}
	d.unreserve(shared, two)
	if got := verdicts(t, d.Plugin, d.w, other); got["a1"] != "" {
		t.Errorf("another claim finds %v after both", got)
	}
	if c := d.claim("c"); c.Status.Allocation != nil || len(c.Status.ReservedFor)+len(c.Finalizers) > 0 {
		t.Errorf("what was only reserved is written: %+v", c)
	}
	if s := d.reserve(cycle.NewState(), podOf(t, `{}`)); !s.IsSuccess() {
		t.Errorf("a pod without claims: %v", s)
	}
}

// TestDevicesBound has PreBind write what was decided, and Unreserve have claims forget the pod after that.
func TestDevicesBound(t *testing.T) {
	d := newDevices(t, offered(t, "a1", 1), parse[resourcev1.DeviceClass](t, classK), deviceClaim(t, openDevice))
	pod := using(t, "p", "c")
	state := d.found(pod)
	if s := d.reserve(state, pod); !s.IsSuccess() {
		t.Fatal(s)
	}
	if s := d.bind(t.Context(), state, pod); !s.IsSuccess() {
		t.Fatal(s)
	}
	c := d.claim("c")
	if c.Status.Allocation == nil || c.Status.Allocation.Devices.Results[0].Device != "d0" || c.Status.Allocation.AllocationTimestamp == nil ||
		!slices.Equal(reservedFor(c), []types.UID{pod.UID}) || !slices.Contains(c.Finalizers, resourcev1.Finalizer) {
		t.Errorf("the claim is %+v", c)
	}
	// The devices stay the claim's: the pod is tried again.
	d.unreserve(state, pod)
	if c = d.claim("c"); len(c.Status.ReservedFor) > 0 || c.Status.Allocation == nil {
		t.Errorf("the claim that forgets the pod is %+v", c.Status)
	}
}

// TestDevicesConflict has others write the claim while a pod is bound.
func TestDevicesConflict(t *testing.T) {
	conflict := apierrors.NewConflict(resourcev1.Resource("resourceclaims"), "c", errors.New("it was changed"))
	elsewhere := parse[resourcev1.ResourceClaim](t, `{status: {`+strings.ReplaceAll(given, "a1", "b1")+`}}`).Status.Allocation
	for name, c := range map[string]struct {
		change func(*resourcev1.ResourceClaim) // by who comes between; nil: the caller gives up
		want   string
	}{
		"a label":          {func(c *resourcev1.ResourceClaim) { c.Labels = map[string]string{"of": "no use"} }, ""},
		"other devices":    {func(c *resourcev1.ResourceClaim) { c.Status.Allocation = elsewhere }, "it has got other devices meanwhile"},
		"another claim":    {func(c *resourcev1.ResourceClaim) { c.UID = "another" }, "it is another one, or is being deleted"},
		"is being deleted": {func(c *resourcev1.ResourceClaim) { c.DeletionTimestamp = new(metav1.Now()) }, "it is another one, or is being deleted"},
		"used by all": {func(c *resourcev1.ResourceClaim) {
			for i := range resourcev1.ResourceClaimReservedForMaxSize {
				c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "p", UID: types.UID(fmt.Sprint(i))})
			}
		}, "it is in use by as many pods as may use it"},
		"cancelled": {nil, context.Canceled.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDevices(t, offered(t, "a1", 1), parse[resourcev1.DeviceClass](t, classK), deviceClaim(t, openDevice))
			pod := using(t, "p", "c")
			state := d.found(pod)
			if s := d.reserve(state, pod); !s.IsSuccess() {
				t.Fatal(s)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			first := true
			d.client.PrependReactor("update", "resourceclaims", func(a k8stesting.Action) (bool, runtime.Object, error) {
				if !first || a.GetSubresource() != "status" {
					return false, nil, nil
				}
				first = false
				if c.change == nil {
					cancel()
					return true, nil, ctx.Err()
				}
				now := a.(k8stesting.UpdateAction).GetObject().(*resourcev1.ResourceClaim).DeepCopy()
				now.Status = resourcev1.ResourceClaimStatus{}
				c.change(now)
				if err := d.client.Tracker().Update(resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), now, "default"); err != nil {
					t.Error(err)
				}
				return true, nil, conflict
			})
			s := d.bind(ctx, state, pod)
			if c.want == "" && !s.IsSuccess() || c.want != "" && (s.IsSuccess() || !strings.Contains(s.Message(), c.want)) {
				t.Fatalf("it ends with %v, want %q", s, c.want)
			}
			if c.want == "" {
				return
			}
			d.unreserve(state, pod)
			if slices.Contains(reservedFor(d.claim("c")), pod.UID) {
				t.Error("the claim is the pod's still")
			}
			if d.w.devices.ResourceClaims().GetPendingAllocation("uc") != nil {
				t.Error("the devices count as taken")
			}
		})
	}
}

// TestDevicesHints has events that are of use to a pod that waits, and such that are not.
func TestDevicesHints(t *testing.T) {
	open, has := deviceClaim(t, openDevice), deviceClaim(t, `{metadata: {name: c, uid: uc}, `+wants+`, status: {`+given+`}}`)
	labelled := open.DeepCopy()
	labelled.Labels = map[string]string{"of": "no use"}
	again, other := has.DeepCopy(), deviceClaim(t, `{metadata: {name: e, uid: ue}, `+wants+`}`)
	again.UID = "again"
	otherHas := other.DeepCopy()
	otherHas.Status = has.Status
	pod, both := using(t, "p", "c"), using(t, "p", "c", "missing")
	elsewhere := open.DeepCopy()
	elsewhere.Namespace = "other"
	templated := podOf(t, `{metadata: {name: p}, spec: {resourceClaims: [{name: c, resourceClaimTemplateName: t}]}}`)
	named := templated.DeepCopy()
	named.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c"}}
	of := func(a fwk.ActionType) fwk.ClusterEvent {
		return fwk.ClusterEvent{Resource: fwk.ResourceClaim, ActionType: a}
	}
	itself := fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodGeneratedResourceClaim}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		event   fwk.ClusterEvent
		was, is any
		want    bool
	}{
		"its claim":              {pod, of(fwk.Add), nil, open, true},
		"one of two":             {both, of(fwk.Add), nil, open, false},
		"another's":              {pod, of(fwk.Add), nil, other, false},
		"of another namespace":   {pod, of(fwk.Add), nil, elsewhere, false},
		"its claim has devices":  {pod, of(fwk.Update), open, has, true},
		"its claim has a label":  {pod, of(fwk.Update), open, labelled, false},
		"its claim made again":   {pod, of(fwk.Update), open, again, true},
		"another's has devices":  {pod, of(fwk.Update), other, otherHas, false},
		"another's has none":     {pod, of(fwk.Update), otherHas, other, true},
		"another's is gone":      {pod, of(fwk.Delete), otherHas, nil, true},
		"one without is gone":    {pod, of(fwk.Delete), other, nil, false},
		"its claims have names":  {templated, itself, templated, named, true},
		"they have none yet":     {templated, itself, templated, templated, false},
		"another pod's have":     {pod, itself, templated, using(t, "q", "c"), false},
		"devices, whatever they": {pod, fwk.ClusterEvent{Resource: fwk.ResourceSlice, ActionType: fwk.Add}, nil, offered(t, "a1", 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDevices(t, open)
			if got := hintOf(t, d.Plugin, c.pod, c.event, c.was, c.is); got != c.want {
				t.Errorf("it says %v, want %v", got, c.want)
			}
		})
	}
}

package plugin_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/cycle"
	"github.com/berth-node/berth/control/scheduler/plugin/nodevolumelimits"
	"github.com/berth-node/berth/control/scheduler/plugin/volumebinding"
	"github.com/berth-node/berth/control/scheduler/plugin/volumerestrictions"
	"github.com/berth-node/berth/control/scheduler/plugin/volumezone"
)

const (
	noDisk     = "node(s) had no available disk"
	claimTaken = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
	noZone     = "node(s) had no available volume zone!"
	overLimit  = "node(s) exceed max volume count"
	notHere    = "d CSI driver is not installed on the node!"
	noClaim    = `persistentvolumeclaim "c" not found!`
)

// storage is what a test's cluster has beside nodes and pods.
type storage struct {
	claims, volumes, classes, nodes, drivers, attachments, capacities []string
}

func (s storage) fill(t testing.TB, w *world) {
	t.Helper()
	core, st := w.objects.Core().V1(), w.objects.Storage().V1()
	put := func(i cache.SharedIndexInformer, o any) {
		t.Helper()
		if err := i.GetIndexer().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range s.claims {
		put(core.PersistentVolumeClaims().Informer(), claimFrom(t, text))
	}
	for _, text := range s.volumes {
		put(core.PersistentVolumes().Informer(), parse[corev1.PersistentVolume](t, text))
	}
	for _, text := range s.classes {
		put(st.StorageClasses().Informer(), parse[storagev1.StorageClass](t, text))
	}
	for _, text := range s.nodes {
		put(st.CSINodes().Informer(), parse[storagev1.CSINode](t, text))
	}
	for _, text := range s.drivers {
		put(st.CSIDrivers().Informer(), parse[storagev1.CSIDriver](t, text))
	}
	for _, text := range s.attachments {
		put(st.VolumeAttachments().Informer(), parse[storagev1.VolumeAttachment](t, text))
	}
	for _, text := range s.capacities {
		put(st.CSIStorageCapacities().Informer(), parse[storagev1.CSIStorageCapacity](t, text))
	}
}

func claimFrom(t testing.TB, text string) *corev1.PersistentVolumeClaim {
	c := parse[corev1.PersistentVolumeClaim](t, text)
	if c.Namespace == "" {
		c.Namespace = "default"
	}
	return c
}

type volumeCase struct {
	plugin  factory
	storage storage
	nodes   []string
	pods    []string
	pod     string
	want    map[string]string
}

func (c volumeCase) run(t *testing.T) {
	w := newWorld(nodesOf(t, c.nodes), podsOf(t, c.pods))
	p := make1(t, c.plugin, nil, w)
	c.storage.fill(t, w)
	if got := verdicts(t, p, w, podOf(t, c.pod)); show(got) != show(c.want) {
		t.Errorf("got  %s\nwant %s", show(got), show(c.want))
	}
}

// claiming is a pod with claims, on a node if one is named.
func claiming(node string, claims ...string) string {
	volumes := ""
	for _, c := range claims {
		volumes += fmt.Sprintf("{name: %s, persistentVolumeClaim: {claimName: %s}}, ", c, c)
	}
	return fmt.Sprintf("{spec: {nodeName: %q, volumes: [%s]}}", node, volumes)
}

func TestVolumeRestrictions(t *testing.T) {
	disk := func(node, source string) string {
		return fmt.Sprintf("{spec: {nodeName: %q, volumes: [{name: v, %s}]}}", node, source)
	}
	alone := storage{claims: []string{`{metadata: {name: c}, spec: {accessModes: [ReadWriteOncePod]}}`}}
	shared := storage{claims: []string{`{metadata: {name: c}, spec: {accessModes: [ReadWriteOnce]}}`}}
	both := map[string]string{"a1": claimTaken, "b1": claimTaken}
	a := map[string]string{"a1": noDisk}
	for name, c := range map[string]volumeCase{
		"no volumes":               {pod: `{}`, pods: []string{claiming("a1", "c")}},
		"claim that is not there":  {pod: claiming("", "c"), want: map[string]string{"a1": noClaim, "b1": noClaim}},
		"claim of many":            {storage: shared, pod: claiming("", "c"), pods: []string{claiming("a1", "c")}},
		"claim of one, free":       {storage: alone, pod: claiming("", "c")},
		"claim of one, taken":      {storage: alone, pod: claiming("", "c"), pods: []string{claiming("a1", "c")}, want: both},
		"claim of one, elsewhere":  {storage: alone, pod: claiming("", "c"), pods: []string{`{metadata: {namespace: other}, ` + claiming("a1", "c")[1:]}},
		"a disk written twice":     {pod: disk("", "gcePersistentDisk: {pdName: d}"), pods: []string{disk("a1", "gcePersistentDisk: {pdName: d}")}, want: a},
		"a disk read by one":       {pod: disk("", "gcePersistentDisk: {pdName: d, readOnly: true}"), pods: []string{disk("a1", "gcePersistentDisk: {pdName: d}")}, want: a},
		"a disk read by two":       {pod: disk("", "gcePersistentDisk: {pdName: d, readOnly: true}"), pods: []string{disk("a1", "gcePersistentDisk: {pdName: d, readOnly: true}")}},
		"two disks":                {pod: disk("", "gcePersistentDisk: {pdName: d}"), pods: []string{disk("a1", "gcePersistentDisk: {pdName: e}")}},
		"an EBS disk read by two":  {pod: disk("", "awsElasticBlockStore: {volumeID: d, readOnly: true}"), pods: []string{disk("a1", "awsElasticBlockStore: {volumeID: d, readOnly: true}")}, want: a},
		"an iSCSI target":          {pod: disk("", "iscsi: {targetPortal: p, iqn: i, lun: 0}"), pods: []string{disk("a1", "iscsi: {targetPortal: q, iqn: i, lun: 0}")}, want: a},
		"an image, one monitor":    {pod: disk("", "rbd: {monitors: [a, b], pool: p, image: i}"), pods: []string{disk("a1", "rbd: {monitors: [b, c], pool: p, image: i}")}, want: a},
		"an image, other monitors": {pod: disk("", "rbd: {monitors: [a], pool: p, image: i}"), pods: []string{disk("a1", "rbd: {monitors: [b], pool: p, image: i}")}},
	} {
		c.plugin, c.nodes = volumerestrictions.New, []string{a1, b1}
		t.Run(name, c.run)
	}
}

// TestClaimIsFreedForTrial is what preemption does: without the pod that has the claim there is no conflict, with
// another one that has it there is again, and the state that this was tried on does not show in the first one.
func TestClaimIsFreedForTrial(t *testing.T) {
	w := newWorld(nodesOf(t, []string{a1, b1}), podsOf(t, []string{claiming("a1", "c")}))
	p := make1(t, volumerestrictions.New, nil, w)
	storage{claims: []string{`{metadata: {name: c}, spec: {accessModes: [ReadWriteOncePod]}}`}}.fill(t, w)
	filter := func(state fwk.CycleState, pod *corev1.Pod) string {
		return verdict(p.(fwk.FilterPlugin).Filter(t.Context(), state, pod, w.infos(t)[0]))
	}
	pod, state := podOf(t, claiming("", "c")), cycle.NewState()
	pre := p.(fwk.PreFilterPlugin)
	if _, status := pre.PreFilter(t.Context(), state, pod, w.infos(t)); !status.IsSuccess() {
		t.Fatal(status)
	}
	info, err := cluster.NewPodInfo(w.pods[0])
	if err != nil {
		t.Fatal(err)
	}
	trial := state.Clone()
	extensions := pre.PreFilterExtensions()
	steps := []struct {
		name string
		do   func() *fwk.Status
		want string
	}{
		{"as it is", func() *fwk.Status { return nil }, claimTaken},
		{"without", func() *fwk.Status { return extensions.RemovePod(t.Context(), trial, pod, info, nil) }, "Success: "},
		{"with", func() *fwk.Status { return extensions.AddPod(t.Context(), trial, pod, info, nil) }, claimTaken},
	}
	for _, step := range steps {
		if s := step.do(); !s.IsSuccess() {
			t.Fatal(s)
		}
		if got := filter(trial, pod); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
		if got := filter(state, pod); got != claimTaken {
			t.Errorf("%s: the first state says %q", step.name, got)
		}
	}
}

func TestVolumeZone(t *testing.T) {
	nodes := []string{
		`{metadata: {name: a, labels: {topology.kubernetes.io/zone: a, topology.kubernetes.io/region: r}}}`,
		`{metadata: {name: b, labels: {topology.kubernetes.io/zone: b, topology.kubernetes.io/region: r}}}`,
		`{metadata: {name: old, labels: {failure-domain.beta.kubernetes.io/zone: a, failure-domain.beta.kubernetes.io/region: r}}}`,
		x1,
	}
	bound := []string{`{metadata: {name: c}, spec: {volumeName: v}}`}
	in := func(labels string) storage {
		return storage{claims: bound, volumes: []string{`{metadata: {name: v, labels: {` + labels + `}}}`}}
	}
	all := func(message string) map[string]string {
		return map[string]string{"a": message, "b": message, "old": message, "x1": message}
	}
	open := func(class string) storage {
		return storage{claims: []string{`{metadata: {name: c}, spec: {storageClassName: s}}`}, classes: []string{class}}
	}
	for name, c := range map[string]volumeCase{
		"no claims":       {pod: `{}`},
		"no labels":       {storage: in(""), pod: claiming("", "c")},
		"a zone":          {storage: in("topology.kubernetes.io/zone: a"), pod: claiming("", "c"), want: map[string]string{"b": noZone}},
		"its older label": {storage: in("failure-domain.beta.kubernetes.io/zone: a"), pod: claiming("", "c"), want: map[string]string{"b": noZone}},
		"two zones":       {storage: in("topology.kubernetes.io/zone: a__b"), pod: claiming("", "c")},
		"another region":  {storage: in("topology.kubernetes.io/region: s"), pod: claiming("", "c"), want: map[string]string{"a": noZone, "b": noZone, "old": noZone}},
		"a torn label":    {storage: in("topology.kubernetes.io/zone: a__"), pod: claiming("", "c")},
		"claim missing":   {pod: claiming("", "c"), want: all(noClaim)},
		"volume missing":  {storage: storage{claims: bound}, pod: claiming("", "c"), want: all(`persistentvolume "v" not found!`)},
		"class missing":   {storage: open(`{metadata: {name: t}}`), pod: claiming("", "c"), want: all(`storageclass.storage.k8s.io "s" not found!`)},
		"waits for a pod": {storage: open(`{metadata: {name: s}, volumeBindingMode: WaitForFirstConsumer}`), pod: claiming("", "c")},
		"waits for a volume": {
			storage: open(`{metadata: {name: s}, volumeBindingMode: Immediate}`), pod: claiming("", "c"), want: all("PersistentVolume had no name!"),
		},
		"no class": {
			storage: storage{claims: []string{`{metadata: {name: c}}`}}, pod: claiming("", "c"),
			want: all("PersistentVolumeClaim had no pv name and storageClass name!"),
		},
	} {
		c.plugin, c.nodes = volumezone.New, nodes
		t.Run(name, c.run)
	}
}

// ofDriver are claims and volumes of the driver d: c1 and c2 have v1 and v2, again has v1 too, and open has none yet.
func ofDriver(count string, attached ...string) storage {
	s := storage{classes: []string{`{metadata: {name: s}, provisioner: d}`}, claims: []string{
		`{metadata: {name: open}, spec: {storageClassName: s}}`, `{metadata: {name: again}, spec: {volumeName: w1}}`,
	}}
	for i := range 3 {
		s.claims = append(s.claims, fmt.Sprintf(`{metadata: {name: c%d}, spec: {volumeName: v%d}}`, i+1, i+1))
		s.volumes = append(s.volumes, fmt.Sprintf(`{metadata: {name: v%d}, spec: {csi: {driver: d, volumeHandle: h%d}}}`, i+1, i+1))
	}
	s.volumes = append(s.volumes, `{metadata: {name: w1}, spec: {csi: {driver: d, volumeHandle: h1}}}`)
	if count != "" {
		s.nodes = []string{`{metadata: {name: a1}, spec: {drivers: [{name: d, nodeID: n` + count + `}]}}`}
	}
	for _, v := range attached {
		s.attachments = append(s.attachments, fmt.Sprintf(`{metadata: {name: of-%s}, spec: {attacher: d, nodeName: a1, source: {persistentVolumeName: %s}}}`, v, v))
	}
	return s
}

func TestNodeVolumeLimits(t *testing.T) {
	over := map[string]string{"a1": overLimit}
	one, two := ", allocatable: {count: 1}", ", allocatable: {count: 2}"
	insists := func(s storage) storage {
		s.drivers = []string{`{metadata: {name: d}, spec: {preventPodSchedulingIfMissing: true}}`}
		return s
	}
	for name, c := range map[string]volumeCase{
		"no claims":              {storage: ofDriver(one), pod: `{}`},
		"no limit":               {storage: ofDriver(", allocatable: {}"), pod: claiming("", "c1", "c2", "c3")},
		"nothing known":          {storage: ofDriver(""), pod: claiming("", "c1", "c2", "c3")},
		"room":                   {storage: ofDriver(two), pod: claiming("", "c1"), pods: []string{claiming("a1", "c2")}},
		"none":                   {storage: ofDriver(one), pod: claiming("", "c1"), pods: []string{claiming("a1", "c2")}, want: over},
		"none at all":            {storage: ofDriver(", allocatable: {count: 0}"), pod: claiming("", "c1"), want: over},
		"the same volume":        {storage: ofDriver(one), pod: claiming("", "c1"), pods: []string{claiming("a1", "c1")}},
		"by another claim":       {storage: ofDriver(one), pod: claiming("", "c1"), pods: []string{claiming("a1", "again")}},
		"one that is to be made": {storage: ofDriver(one), pod: claiming("", "open"), pods: []string{claiming("a1", "c1")}, want: over},
		"of two that are to be":  {storage: ofDriver(one), pod: claiming("", "open", "c1"), want: over},
		"attached still":         {storage: ofDriver(one, "v2"), pod: claiming("", "c1"), want: over},
		"attached already":       {storage: ofDriver(one, "v1"), pod: claiming("", "c1")},
		"attached, and a pod's":  {storage: ofDriver(two, "v2"), pod: claiming("", "c1"), pods: []string{claiming("a1", "c2")}},
		"attached elsewhere": {
			pod: claiming("", "c1"), storage: func() storage {
				s := ofDriver(one)
				s.attachments = []string{`{metadata: {name: of-v2}, spec: {attacher: d, nodeName: a2, source: {persistentVolumeName: v2}}}`}
				return s
			}(),
		},
		"claim missing":         {storage: ofDriver(one), pod: claiming("", "c"), want: map[string]string{"a1": `look up PVC default/c: ` + noClaim}},
		"another's is missing":  {storage: ofDriver(one), pod: claiming("", "c1"), pods: []string{claiming("a1", "gone")}},
		"a driver that insists": {storage: insists(ofDriver("")), pod: claiming("", "c1"), want: map[string]string{"a1": notHere}},
		"and is there":          {storage: insists(ofDriver(one)), pod: claiming("", "c1")},
	} {
		c.plugin, c.nodes = nodevolumelimits.New, []string{a1}
		t.Run(name, c.run)
	}
}

// TestVolumeHints has events that are of use to a pod, and such that are not.
func TestVolumeHints(t *testing.T) {
	pod := podOf(t, claiming("", "c1"))
	node := func(text string) *storagev1.CSINode { return parse[storagev1.CSINode](t, text) }
	low := node(`{metadata: {name: a1}, spec: {drivers: [{name: d, nodeID: n, allocatable: {count: 1}}]}}`)
	high := node(`{metadata: {name: a1}, spec: {drivers: [{name: d, nodeID: n, allocatable: {count: 2}}]}}`)
	other := node(`{metadata: {name: a1}, spec: {drivers: [{name: e, nodeID: n, allocatable: {count: 2}}]}}`)
	attachment := func(driver string) *storagev1.VolumeAttachment {
		return parse[storagev1.VolumeAttachment](t, `{metadata: {name: a}, spec: {attacher: `+driver+`, nodeName: a1, source: {persistentVolumeName: v2}}}`)
	}
	insisting := parse[storagev1.CSIDriver](t, `{metadata: {name: d}, spec: {preventPodSchedulingIfMissing: true}}`)
	easy := parse[storagev1.CSIDriver](t, `{metadata: {name: d}}`)
	zoned := func(zone string) *corev1.Node {
		return nodeOf(t, `{metadata: {name: n, labels: {topology.kubernetes.io/zone: `+zone+`}}}`)
	}
	for name, c := range map[string]struct {
		plugin  factory
		event   fwk.ClusterEvent
		was, is any
		want    bool
	}{
		"limit up":            {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.CSINode, ActionType: fwk.Update}, low, high, true},
		"limit down":          {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.CSINode, ActionType: fwk.Update}, high, low, false},
		"limit is the same":   {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.CSINode, ActionType: fwk.Update}, low, low, false},
		"driver comes":        {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.CSINode, ActionType: fwk.Add}, nil, low, true},
		"another comes":       {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.CSINode, ActionType: fwk.Add}, nil, other, false},
		"does not insist":     {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.CSIDriver, ActionType: fwk.Update}, insisting, easy, true},
		"has not insisted":    {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.CSIDriver, ActionType: fwk.Update}, easy, easy, false},
		"detached":            {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.VolumeAttachment, ActionType: fwk.Delete}, attachment("d"), nil, true},
		"another's detached":  {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.VolumeAttachment, ActionType: fwk.Delete}, attachment("e"), nil, false},
		"its pod gone":        {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, podOf(t, claiming("a1", "c2")), nil, true},
		"a pod without gone":  {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, podOf(t, `{spec: {nodeName: a1}}`), nil, false},
		"its claim":           {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add}, nil, claimFrom(t, `{metadata: {name: c1}}`), true},
		"another claim":       {nodevolumelimits.New, fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Add}, nil, claimFrom(t, `{metadata: {name: c2}}`), false},
		"its claim's pod":     {volumerestrictions.New, fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, podOf(t, claiming("a1", "c1")), nil, true},
		"another claim's pod": {volumerestrictions.New, fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, podOf(t, claiming("a1", "c2")), nil, false},
		"node in its zone":    {volumezone.New, fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}, nil, zoned("a"), true},
		"node elsewhere":      {volumezone.New, fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}, nil, zoned("b"), false},
		"its volume": {
			volumezone.New, fwk.ClusterEvent{Resource: fwk.PersistentVolume, ActionType: fwk.Add}, nil, parse[corev1.PersistentVolume](t, `{metadata: {name: v1}}`), true,
		},
		"another volume": {
			volumezone.New, fwk.ClusterEvent{Resource: fwk.PersistentVolume, ActionType: fwk.Add}, nil, parse[corev1.PersistentVolume](t, `{metadata: {name: v2}}`), false,
		},
		"to bind, its claim":   {volumebinding.New, fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Update}, nil, claimFrom(t, `{metadata: {name: c1}}`), true},
		"to bind, another's":   {volumebinding.New, fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Update}, nil, claimFrom(t, `{metadata: {name: c2}}`), false},
		"to bind, elsewhere":   {volumebinding.New, fwk.ClusterEvent{Resource: fwk.PersistentVolumeClaim, ActionType: fwk.Update}, nil, claimFrom(t, `{metadata: {namespace: n, name: c1}}`), false},
		"to bind, its volume":  {volumebinding.New, fwk.ClusterEvent{Resource: fwk.PersistentVolume, ActionType: fwk.Update}, nil, parse[corev1.PersistentVolume](t, `{metadata: {name: v1}}`), true},
		"to bind, not its own": {volumebinding.New, fwk.ClusterEvent{Resource: fwk.PersistentVolume, ActionType: fwk.Update}, nil, parse[corev1.PersistentVolume](t, `{metadata: {name: v9}, spec: {claimRef: {namespace: default, name: c2}}}`), false},
		"to bind, for it":      {volumebinding.New, fwk.ClusterEvent{Resource: fwk.PersistentVolume, ActionType: fwk.Add}, nil, parse[corev1.PersistentVolume](t, `{metadata: {name: v9}, spec: {claimRef: {namespace: default, name: c1}}}`), true},
		"a class of others": {
			volumezone.New, fwk.ClusterEvent{Resource: fwk.StorageClass, ActionType: fwk.Add}, nil, parse[storagev1.StorageClass](t, `{metadata: {name: s}}`), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(nil, nil)
			p := make1(t, c.plugin, nil, w)
			s := ofDriver("")
			s.volumes[0] = `{metadata: {name: v1, labels: {topology.kubernetes.io/zone: a}}, spec: {csi: {driver: d, volumeHandle: h1}}}`
			s.fill(t, w)
			if got := hintOf(t, p, pod, c.event, c.was, c.is); got != c.want {
				t.Errorf("it says %v, want %v", got, c.want)
			}
		})
	}
}

// hintOf is whether a plugin has a pod tried again for an event.
func hintOf(t *testing.T, p fwk.Plugin, pod *corev1.Pod, event fwk.ClusterEvent, was, is any) bool {
	t.Helper()
	events, err := p.(fwk.EnqueueExtensions).EventsToRegister(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Event.Resource != event.Resource || e.Event.ActionType&event.ActionType == 0 {
			continue
		}
		if e.QueueingHintFn == nil {
			return true
		}
		if h, err := e.QueueingHintFn(klog.Background(), pod, "what", nil); err == nil || h != fwk.Queue {
			t.Errorf("of another kind: %v, %v", h, err)
		}
		h, err := e.QueueingHintFn(klog.Background(), pod, was, is)
		if err != nil {
			t.Fatal(err)
		}
		return h == fwk.Queue
	}
	t.Fatalf("nobody wants to hear of %v", event)
	return false
}

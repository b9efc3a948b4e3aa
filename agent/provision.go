package agent

import (
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/object"
	volumecsi "github.com/berth-node/berth/agent/volume/csi"
	"github.com/berth-node/berth/csi/provision"
)

// provisionDir has the records of the volumes that were made for claims, in the root directory.
const provisionDir = "provision"

// provisioner has volumes and snapshots be made for what the manifests ask for, and makes them known to the pods as
// PersistentVolumes.
type provisioner struct {
	m       *provision.Manager
	objects *object.Store
	node    string
	bell    chan struct{} // something was made, or deleted

	// What follows belongs to the goroutine of relay.
	have   map[object.Ref]object.Object // of the kinds that it needs
	pods   map[types.NamespacedName]*corev1.Pod
	synced bool
	stale  bool                                // volumes may be wanted otherwise than was told
	shown  map[string]*corev1.PersistentVolume // by name
	specs  map[provision.Ref]*corev1.PersistentVolumeClaimSpec
	bound  map[provision.Ref]bool       // claims that a PersistentVolume of a manifest names
	others map[object.Ref]object.Object // PersistentVolumes of an API server
}

// provisionSettings are those of what is made for claims.
type provisionSettings struct {
	place  config.Place
	node   string
	grace  time.Duration
	labels map[string]string // the node's
	events *event.Recorder
}

func openProvisioner(c provisionSettings, v *csiVolumes, log *slog.Logger) (*provisioner, error) {
	out := &provisioner{
		objects: v.objects.Of(desired.File), node: c.node, bell: make(chan struct{}, 1),
		have: map[object.Ref]object.Object{}, pods: map[types.NamespacedName]*corev1.Pod{}, shown: map[string]*corev1.PersistentVolume{},
		others: map[object.Ref]object.Object{},
	}
	var err error
	out.m, err = provision.New(provision.Config{
		Dir: filepath.Join(c.place.RootDir, provisionDir), Drivers: v.drivers, Node: v.volumes, Grace: c.grace, Labels: c.labels, Log: log,
		Secret: v.secret, Changed: func(provision.Kind, provision.Ref) { out.ring() }, Event: provisionEvents{c.events}.record,
	})
	return out, err
}

func (p *provisioner) ring() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// run makes and deletes, and hands on what the manifests ask for with the volumes that were made for it.
func (p *provisioner) run(ctx context.Context, in <-chan desired.Update, out chan<- desired.Update) error {
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() { p.relay(ctx, in, out) })
	return p.m.Run(ctx)
}

// note keeps what an update says, and tells whether volumes may be wanted otherwise by it. What an API server has is
// the matter of its controllers: its claims are others than those of manifests that have their names, and one of them
// that goes is no end of a volume here.
func (p *provisioner) note(u desired.Update) bool {
	if u.Origin == desired.API && !u.Synced {
		return p.noteOther(u)
	}
	switch u.Kind {
	case "", object.Pod:
		if u.Synced {
			p.synced = true
			return true
		}
		before := p.pods[u.Key]
		if u.Pod == nil {
			delete(p.pods, u.Key)
		} else {
			p.pods[u.Key] = u.Pod
		}
		return claims(before) || claims(u.Pod)
	case object.PersistentVolumeClaim, object.PersistentVolume, object.StorageClass, object.VolumeAttributesClass, object.VolumeSnapshot,
		object.VolumeSnapshotClass, object.VolumeSnapshotContent, object.VolumeGroupSnapshot, object.VolumeGroupSnapshotClass:
		if u.Object == nil {
			delete(p.have, u.Ref())
		} else {
			p.have[u.Ref()] = u.Object
		}
		return true
	}
	return false
}

// noteOther keeps the volumes that an API server has, since what one of them names is not deleted.
func (p *provisioner) noteOther(u desired.Update) bool {
	switch {
	case u.Kind != object.PersistentVolume:
		return false
	case u.Object == nil:
		delete(p.others, u.Ref())
	default:
		p.others[u.Ref()] = u.Object
	}
	return true
}

// claims says whether a pod has volumes by claims.
func claims(pod *corev1.Pod) bool {
	return pod != nil && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
	})
}

// volumes are those of all claims there are.
func (p *provisioner) volumes() []provision.Claim {
	p.specs = map[provision.Ref]*corev1.PersistentVolumeClaimSpec{}
	used := map[provision.Ref]bool{}
	p.bound = map[provision.Ref]bool{}
	for _, o := range p.have {
		if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil {
			p.bound[provision.Ref{Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name}] = true
		}
	}
	var volumes []provision.Claim
	add := func(c *corev1.PersistentVolumeClaim, uid string, ephemeral bool) {
		ref := provision.Ref{Namespace: c.Namespace, Name: c.Name}
		one := p.claim(c)
		one.UID, one.Ephemeral = uid, ephemeral
		one.Waits = one.Waits && !used[ref] && !ephemeral
		one.Held = one.Held || p.bound[ref] || p.specs[ref] != nil
		if p.specs[ref] == nil {
			p.specs[ref] = &c.Spec
		}
		volumes = append(volumes, one)
	}
	for _, pod := range p.pods {
		for i := range pod.Spec.Volumes {
			if c := pod.Spec.Volumes[i].PersistentVolumeClaim; c != nil {
				used[provision.Ref{Namespace: pod.Namespace, Name: c.ClaimName}] = true
			}
		}
	}
	for _, o := range p.have {
		if c, ok := o.(*corev1.PersistentVolumeClaim); ok {
			add(c, provision.UID(p.node, c.Namespace, c.Name), false)
		}
	}
	for _, pod := range p.pods {
		for i := range pod.Spec.Volumes {
			if v := &pod.Spec.Volumes[i]; v.Ephemeral != nil {
				add(object.ClaimOf(pod, v), provision.UID(p.node, string(pod.UID), v.Name), true)
			}
		}
	}
	return volumes
}

// handles are the volumes and snapshots that manifests, or an API server's PersistentVolumes, name as the driver does.
func (p *provisioner) handles() []provision.Handle {
	var out []provision.Handle
	for _, o := range slices.AppendSeq(slices.Collect(maps.Values(p.have)), maps.Values(p.others)) {
		switch o := o.(type) {
		case *corev1.PersistentVolume:
			if s := o.Spec.CSI; s != nil {
				out = append(out, provision.Handle{Kind: provision.Volume, Driver: s.Driver, Handle: s.VolumeHandle})
			}
		case *snapshotv1.VolumeSnapshotContent:
			if s := o.Spec.Source.SnapshotHandle; s != nil {
				out = append(out, provision.Handle{Kind: provision.Snapshot, Driver: o.Spec.Driver, Handle: *s})
			}
		}
	}
	return out
}

// claim is what a claim asks for.
func (p *provisioner) claim(c *corev1.PersistentVolumeClaim) provision.Claim {
	class := p.class(c)
	ref := provision.Ref{Namespace: c.Namespace, Name: c.Name}
	if class == nil || c.Spec.VolumeName != "" || c.Spec.Selector != nil {
		return provision.Claim{Ref: ref, Held: true}
	}
	out := provision.Claim{
		Ref: ref, Annotations: c.Annotations,
		Class: provision.Class{
			Name: class.Name, Driver: class.Provisioner, Parameters: class.Parameters,
			Retain: *class.ReclaimPolicy == corev1.PersistentVolumeReclaimRetain, Expandable: class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion,
			MountOptions: class.MountOptions, Topologies: topologies(class),
		},
		Waits: *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer,
		Bytes: c.Spec.Resources.Requests.Storage().Value(), Limit: c.Spec.Resources.Limits.Storage().Value(),
		Block:      c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == corev1.PersistentVolumeBlock,
		Attributes: p.attributes(c),
	}
	for _, m := range c.Spec.AccessModes {
		out.AccessModes = append(out.AccessModes, provision.AccessMode(m))
	}
	switch kind, _, name := object.DataSource(&c.Spec); kind {
	case object.PersistentVolumeClaim:
		out.Source.Claim = name
	case object.VolumeSnapshot:
		out.Source.Snapshot = name
		if content := p.content(c.Namespace, name); content != nil {
			out.Source = provision.Source{SnapshotHandle: *content.Spec.Source.SnapshotHandle}
		}
	}
	return out
}

// topologies are where volumes of a class may be made.
func topologies(class *storagev1.StorageClass) []map[string][]string {
	var out []map[string][]string
	for _, term := range class.AllowedTopologies {
		one := map[string][]string{}
		for _, e := range term.MatchLabelExpressions {
			one[e.Key] = e.Values
		}
		out = append(out, one)
	}
	return out
}

// The annotations of the classes that count where none is named.
const (
	defaultClass         = "storageclass.kubernetes.io/is-default-class"
	defaultSnapshotClass = "snapshot.storage.kubernetes.io/is-default-class"
	defaultGroupClass    = "groupsnapshot.storage.kubernetes.io/is-default-class"
)

// defaultOf is the class that an annotation says is the default, of those that fit, or nil. Of several the newest is it
// in a cluster; here, where none has an age, the first by name.
func defaultOf[C interface {
	comparable
	object.Object
}](have map[object.Ref]object.Object, annotation string, fits func(C) bool) (found C) {
	var none C
	for _, o := range have {
		class, ok := o.(C)
		if ok && class.GetAnnotations()[annotation] == "true" && fits(class) && (found == none || class.GetName() < found.GetName()) {
			found = class
		}
	}
	return found
}

// class is the StorageClass of a claim, or nil.
func (p *provisioner) class(c *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	if c.Spec.StorageClassName != nil {
		class, _ := p.have[object.RefTo(object.StorageClass, "", *c.Spec.StorageClassName)].(*storagev1.StorageClass)
		return class
	}
	return defaultOf(p.have, defaultClass, func(*storagev1.StorageClass) bool { return true })
}

// content is the snapshot that somebody else has made for a VolumeSnapshot, or nil.
func (p *provisioner) content(namespace, name string) *snapshotv1.VolumeSnapshotContent {
	s, _ := p.have[object.RefTo(object.VolumeSnapshot, namespace, name)].(*snapshotv1.VolumeSnapshot)
	if s == nil || s.Spec.Source.VolumeSnapshotContentName == nil {
		return nil
	}
	c, _ := p.have[object.RefTo(object.VolumeSnapshotContent, "", *s.Spec.Source.VolumeSnapshotContentName)].(*snapshotv1.VolumeSnapshotContent)
	return c
}

// driverOf is the driver that has made the volume of a claim, or that is to make it.
func (p *provisioner) driverOf(namespace, claim string) string {
	if made, ok := p.m.Get(provision.Volume, provision.Ref{Namespace: namespace, Name: claim}); ok {
		return made.Claim.Class.Driver
	}
	c, _ := p.have[object.RefTo(object.PersistentVolumeClaim, namespace, claim)].(*corev1.PersistentVolumeClaim)
	if c == nil {
		return ""
	}
	if class := p.class(c); class != nil {
		return class.Provisioner
	}
	return ""
}

// freeing has what waits for pods to let a volume go be tried again when one does.
func (p *provisioner) freeing(c volumecsi.Config) volumecsi.Config {
	before := c.Released
	c.Released = func() {
		if before != nil {
			before()
		}
		p.m.Released()
	}
	return c
}

// leaveProvisioned is the directory of records, for a purge: what volumes have is their users', and stays with the
// drivers.
func leaveProvisioned(p config.Place, log *slog.Logger) string {
	dir := filepath.Join(p.RootDir, provisionDir)
	for _, s := range provision.Recorded(dir) {
		log.Warn("it stays with its driver", "what", string(s.Kind), "claim", s.Claim.String(), "driver", s.Claim.Class.Driver,
			"handle", s.Handle)
	}
	return dir
}

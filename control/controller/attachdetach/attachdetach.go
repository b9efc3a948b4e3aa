// Package attachdetach asks the attachers of CSI drivers to attach volumes to the nodes whose pods use them, and to
// detach them when none does and the node has unmounted them.
package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	coreinformers "k8s.io/client-go/informers/core/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
)

// The indexes of what informers have.
const (
	byNode   = "attachdetach-node"   // attachments
	byVolume = "attachdetach-volume" // attachments
)

// Deps are what the controller is made of.
type Deps struct {
	Client      kubernetes.Interface
	Core        coreinformers.Interface // of pods and nodes
	Claims      coreinformers.PersistentVolumeClaimInformer
	Volumes     coreinformers.PersistentVolumeInformer
	Attachments storageinformers.VolumeAttachmentInformer
	Drivers     storageinformers.CSIDriverInformer
	Events      record.EventRecorder
	Log         *slog.Logger
}

type attacher struct {
	d     Deps
	loop  *controller.Loop[string]
	pods  cache.Indexer
	there cache.Indexer // attachments
	now   func() time.Time

	mu       sync.Mutex
	unwanted map[string]since // attachments that are not wanted, and since when
	// made are attachments that the informer has not told of yet.
	made map[string]*storagev1.VolumeAttachment
	told map[string]string // attachments, and the last that was told about one that is not there
}

// New makes the controller.
func New(d Deps) (controller.Controller, error) {
	pods, attachments := d.Core.Pods().Informer(), d.Attachments.Informer()
	if err := controller.IndexByClaim(pods); err != nil {
		return nil, fmt.Errorf("index pods by their claims: %w", err)
	}
	if err := controller.IndexByNode(pods); err != nil {
		return nil, err
	}
	if err := attachments.AddIndexers(cache.Indexers{byNode: func(o any) ([]string, error) {
		if a, ok := o.(*storagev1.VolumeAttachment); ok {
			return []string{a.Spec.NodeName}, nil
		}
		return nil, nil
	}, byVolume: func(o any) ([]string, error) {
		if a, ok := o.(*storagev1.VolumeAttachment); ok && a.Spec.Source.PersistentVolumeName != nil {
			return []string{*a.Spec.Source.PersistentVolumeName}, nil
		}
		return nil, nil
	}}); err != nil {
		return nil, fmt.Errorf("index attachments: %w", err)
	}
	a := &attacher{
		d: d, pods: pods.GetIndexer(), there: attachments.GetIndexer(), now: time.Now,
		unwanted: map[string]since{}, made: map[string]*storagev1.VolumeAttachment{}, told: map[string]string{},
	}
	// One worker: a volume that only one node may have is never given to two at a time.
	a.loop = controller.NewLoop(d.Log, 1, a.sync).
		Watch(d.Claims.Informer(), a.ofClaim).
		Watch(d.Volumes.Informer(), a.ofVolume).
		Watch(d.Drivers.Informer(), a.ofDriver).
		Watch(attachments, a.ofAttachment).
		Watch(d.Core.Nodes().Informer(), controller.Name).
		Watch(pods, a.ofPod)
	return a.loop, nil
}

func (a *attacher) ofPod(o any) []string {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.NodeName == "" || len(controller.ClaimsOf(p)) == 0 {
		return nil
	}
	return []string{p.Spec.NodeName}
}

func (a *attacher) ofClaim(o any) []string {
	c, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok || c.Spec.VolumeName == "" {
		return nil
	}
	return a.usersOf(c.Namespace, c.Name)
}

func (a *attacher) ofVolume(o any) []string {
	v, ok := o.(*corev1.PersistentVolume)
	if !ok || v.Spec.CSI == nil || v.Spec.ClaimRef == nil {
		return nil
	}
	return a.usersOf(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
}

// ofDriver are all nodes: whether a driver attaches at all is seldom another thing than it was.
func (a *attacher) ofDriver(any) []string {
	var names []string
	for _, o := range a.d.Core.Nodes().Informer().GetStore().List() {
		names = append(names, controller.Name(o)...)
	}
	return names
}

// ofAttachment are the node of an attachment, and those that wait for its volume.
func (a *attacher) ofAttachment(o any) []string {
	at, ok := o.(*storagev1.VolumeAttachment)
	if !ok {
		return nil
	}
	a.mu.Lock()
	delete(a.made, at.Name)
	a.mu.Unlock()
	nodes := []string{at.Spec.NodeName}
	if name := at.Spec.Source.PersistentVolumeName; name != nil {
		if v, err := a.d.Volumes.Lister().Get(*name); err == nil {
			nodes = append(nodes, a.ofVolume(v)...)
		}
	}
	return nodes
}

// usersOf are the nodes of the pods that use a claim.
func (a *attacher) usersOf(namespace, claim string) []string {
	var nodes []string
	for _, p := range controller.UsersOf(a.pods, namespace, claim) {
		if p.Spec.NodeName != "" && !slices.Contains(nodes, p.Spec.NodeName) {
			nodes = append(nodes, p.Spec.NodeName)
		}
	}
	return nodes
}

func (a *attacher) sync(ctx context.Context, name string) (time.Duration, error) {
	s, err := a.look(name)
	if err != nil {
		return 0, err
	}
	now := a.now()
	noted := a.remember(ctx, s, now)
	again, err := a.do(ctx, s, decide(s, a.since(now), now))
	return again, errors.Join(noted, err)
}

// look finds out about a node.
func (a *attacher) look(name string) (state, error) {
	s := state{
		name: name, wanted: map[string]wish{}, present: map[string]*storagev1.VolumeAttachment{},
		volumes: map[string]*corev1.PersistentVolume{}, elsewhere: map[string][]string{},
	}
	node, err := a.d.Core.Nodes().Lister().Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return s, fmt.Errorf("find node %s: %w", name, err)
	}
	s.node = node
	if node != nil && node.Annotations[managedBy] == "true" {
		a.wishes(&s)
	}
	for _, at := range a.attachments(byNode, name) {
		if v := a.volumeOf(at); v != nil {
			s.present[at.Name], s.volumes[at.Name] = at, v
		}
	}
	for want, w := range s.wanted {
		for _, at := range a.attachments(byVolume, w.volume.Name) {
			if at.Spec.NodeName != name {
				s.elsewhere[want] = append(s.elsewhere[want], at.Spec.NodeName)
			}
		}
	}
	return s, nil
}

// wishes are the volumes that the pods of a node use and that have to be attached.
func (a *attacher) wishes(s *state) {
	for _, p := range controller.PodsOn(a.pods, s.name) {
		if hasEnded(p) {
			continue
		}
		for _, claim := range controller.ClaimsOf(p) {
			v := a.bound(p, claim)
			if v == nil || !a.attaches(v.Spec.CSI.Driver) {
				continue
			}
			name := attachmentName(v.Spec.CSI.VolumeHandle, v.Spec.CSI.Driver, s.name)
			w := s.wanted[name]
			s.wanted[name] = wish{v, append(w.pods, p)}
		}
	}
}

// bound is the volume of a CSI driver that a claim of a pod has, if both say so.
func (a *attacher) bound(p *corev1.Pod, claim string) *corev1.PersistentVolume {
	c, err := a.d.Claims.Lister().PersistentVolumeClaims(p.Namespace).Get(claim)
	if err != nil || c.Spec.VolumeName == "" || c.Status.Phase != corev1.ClaimBound || !controller.Uses(p, c) {
		return nil
	}
	v, err := a.d.Volumes.Lister().Get(c.Spec.VolumeName)
	if err != nil || v.Spec.CSI == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID {
		return nil
	}
	return v
}

// attaches says whether volumes of a driver have to be attached: they have, unless it says that they need not.
func (a *attacher) attaches(driver string) bool {
	d, err := a.d.Drivers.Lister().Get(driver)
	return err != nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// attachments are those of an index, with what was made since the informer has heard of any.
func (a *attacher) attachments(index, of string) []*storagev1.VolumeAttachment {
	found, err := a.there.ByIndex(index, of)
	if err != nil {
		return nil
	}
	var all []*storagev1.VolumeAttachment
	for _, o := range found {
		if at, ok := o.(*storagev1.VolumeAttachment); ok {
			all = append(all, at)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.made {
		if index == byNode && at.Spec.NodeName != of || index == byVolume && *at.Spec.Source.PersistentVolumeName != of {
			continue
		}
		if !slices.ContainsFunc(all, func(b *storagev1.VolumeAttachment) bool { return b.Name == at.Name }) {
			all = append(all, at)
		}
	}
	return all
}

// volumeOf is the volume of an attachment that is this controller's by its name; others have theirs, too.
func (a *attacher) volumeOf(at *storagev1.VolumeAttachment) *corev1.PersistentVolume {
	if at.Spec.Source.PersistentVolumeName == nil {
		return nil
	}
	v, err := a.d.Volumes.Lister().Get(*at.Spec.Source.PersistentVolumeName)
	if err != nil || v.Spec.CSI == nil || attachmentName(v.Spec.CSI.VolumeHandle, v.Spec.CSI.Driver, at.Spec.NodeName) != at.Name {
		return nil
	}
	return v
}

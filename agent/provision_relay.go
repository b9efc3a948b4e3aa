package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/csi/provision"
)

// How long nothing is looked at after a look: all objects are, and they change one by one.
const (
	lookPauseMin = 2 * time.Millisecond
	lookPause    = 9 // times as long as the look took
)

// relay hands updates on in their order, with the PersistentVolumes that were made among them. What was made is looked
// at though nobody takes updates.
func (p *provisioner) relay(ctx context.Context, in <-chan desired.Update, out chan<- desired.Update) {
	var queue []desired.Update
	look := time.NewTimer(0)
	defer look.Stop()
	var looked time.Time // until when nothing is looked at
	due, fresh := true, false
	for {
		if fresh && len(queue) == 0 { // what nobody takes does not grow
			queue, fresh = p.news(), false
		}
		from, to, next := in, chan<- desired.Update(nil), desired.Update{}
		if len(queue) > 0 {
			from, to, next = nil, out, queue[0]
		}
		select {
		case <-ctx.Done():
			return
		case to <- next:
			queue = queue[1:]
			continue
		case u := <-from:
			if u.Synced { // before which all is told that is known
				p.look()
				queue = p.news()
			}
			queue = append(queue, u)
			if !p.note(u) {
				continue
			}
			p.stale = true
		case <-p.bell:
		case <-look.C:
			began := time.Now()
			p.look()
			due, fresh = false, true
			looked = time.Now().Add(max(lookPauseMin, lookPause*time.Since(began)))
			continue
		}
		if !due {
			due = true
			look.Reset(max(0, time.Until(looked)))
		}
	}
}

// look tells what is wanted, and says of claims without a volume what about them.
func (p *provisioner) look() {
	if p.stale || p.specs == nil {
		p.stale = false
		if volumes := p.volumes(); p.synced { // else what is not known yet would count as gone
			p.m.Doubt(len(p.have) == 0 && len(p.pods) == 0) // a directory that is not mounted is empty, too
			p.m.Want(volumes, p.snapshots(), p.groups(), p.handles()...)
		}
	}
	pending := map[types.NamespacedName]string{}
	for _, s := range p.m.List() {
		if s.Kind == provision.Volume && !s.Ready {
			pending[types.NamespacedName{Namespace: s.Claim.Namespace, Name: s.Claim.Name}] = cmp.Or(s.Error,
				fmt.Sprintf("its volume is made by %s, when that driver is registered", s.Claim.Class.Driver))
		}
	}
	p.objects.Pending(pending)
}

// news are the PersistentVolumes that are otherwise than they were told.
func (p *provisioner) news() []desired.Update {
	var out []desired.Update
	now := map[string]*corev1.PersistentVolume{}
	for _, s := range p.m.List() {
		if s.Kind == provision.Volume && s.Ready && !p.stepsBack(&s) {
			now[s.Name] = p.persistent(&s)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if !reflect.DeepEqual(now[name], p.shown[name]) {
			out = append(out, desired.Update{Kind: object.PersistentVolume, Key: types.NamespacedName{Name: name}, Object: now[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.shown)) {
		if now[name] == nil { // what a manifest has by that name is seen again
			u := desired.Update{Kind: object.PersistentVolume, Key: types.NamespacedName{Name: name}}
			u.Object = p.have[u.Ref()]
			out = append(out, u)
		}
	}
	p.shown = now
	return out
}

// stepsBack says whether a manifest has another volume for the claim that one was made for, or a volume of the same
// name. Whose claim names what was made for it has that.
func (p *provisioner) stepsBack(s *provision.State) bool {
	if p.have[object.RefTo(object.PersistentVolume, "", s.Name)] != nil {
		return true
	}
	spec := p.specs[s.Claim.Ref]
	return p.bound[s.Claim.Ref] && (spec == nil || spec.VolumeName != s.Name)
}

// Package claims is resource claims as the scheduler sees them: as the API has them, with what this process has written
// and not heard of yet, and the allocations that it has decided and not written yet.
package claims

import (
	"errors"
	"fmt"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/devices"
)

// Tracker is the claims. There is no copy of what the informer knows, so that an event of a claim is never ahead of
// what is found here.
type Tracker struct {
	lister resourcelisters.ResourceClaimLister

	// The lister is asked with the lock held: what was heard of by one who has dropped an assumed claim for it, all
	// who ask later hear of, too.
	mu      sync.Mutex
	assumed map[cache.ObjectName]*resourcev1.ResourceClaim
	pending map[types.UID]*pending
}

// pending is an allocation that is decided, and that some pods which use the claim go on with.
type pending struct {
	claim *resourcev1.ResourceClaim
	pods  int
}

var _ fwk.ResourceClaimTracker = (*Tracker)(nil)

// NewTracker makes a tracker.
func NewTracker(lister resourcelisters.ResourceClaimLister) *Tracker {
	return &Tracker{lister: lister, assumed: map[cache.ObjectName]*resourcev1.ResourceClaim{}, pending: map[types.UID]*pending{}}
}

// List are all claims. Allocations that are pending are not in them: who asks for one claim has to know whether others
// may still give up its allocation.
func (t *Tracker) List() ([]*resourcev1.ResourceClaim, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list()
}

func (t *Tracker) list() ([]*resourcev1.ResourceClaim, error) {
	all, err := t.lister.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list resource claims: %w", err)
	}
	if len(t.assumed) == 0 {
		return all, nil
	}
	there := sets.New[cache.ObjectName]()
	merged := make([]*resourcev1.ResourceClaim, 0, len(all))
	for _, c := range all {
		merged = append(merged, t.latest(c))
		there.Insert(cache.MetaObjectToName(c))
	}
	for name := range t.assumed {
		if !there.Has(name) {
			delete(t.assumed, name) // it was deleted
		}
	}
	return merged, nil
}

// Get is one claim.
func (t *Tracker) Get(namespace, name string) (*resourcev1.ResourceClaim, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.lister.ResourceClaims(namespace).Get(name)
	if err != nil {
		return nil, err // it says which, as a pod's condition will
	}
	return t.latest(c), nil
}

// latest is a claim as it was assumed to be until the informer has it so, or newer.
func (t *Tracker) latest(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	name := cache.MetaObjectToName(c)
	a := t.assumed[name]
	if a == nil {
		return c
	}
	if older(c, a) {
		return a
	}
	delete(t.assumed, name)
	return c
}

// older says whether the first is an earlier version of the same claim as the second.
func older(a, b *resourcev1.ResourceClaim) bool {
	if a.UID != b.UID {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}

// ListAllAllocatedDevices are the devices that claims have, and are about to have, but those that are shared.
func (t *Tracker) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	s, err := t.GatherAllocatedState()
	if err != nil {
		return nil, err
	}
	return s.AllocatedDevices, nil
}

// GatherAllocatedState is all that claims have, and are about to have.
func (t *Tracker) GatherAllocatedState() (*structured.AllocatedState, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all, err := t.list()
	if err != nil {
		return nil, err
	}
	state := devices.NewAllocated()
	for _, c := range all {
		devices.Add(state, c.Status.Allocation)
	}
	for _, p := range t.pending {
		devices.Add(state, p.claim.Status.Allocation)
	}
	return state, nil
}

// errNoAllocation is returned for a claim that is told to be allocated and is not.
var errNoAllocation = errors.New("the claim has no allocation")

// errOther is returned where a claim is to be allocated otherwise than others go on with already.
var errOther = errors.New("another allocation is under way")

// SignalClaimPendingAllocation has an allocation count until all that have signalled it have called Release.
func (t *Tracker) SignalClaimPendingAllocation(uid types.UID, claim *resourcev1.ResourceClaim) error {
	if claim == nil || claim.Status.Allocation == nil {
		return fmt.Errorf("allocate claim %s: %w", uid, errNoAllocation)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pending[uid]
	if p == nil {
		t.pending[uid] = &pending{claim, 1}
		return nil
	}
	if !Same(p.claim.Status.Allocation, claim.Status.Allocation) {
		return fmt.Errorf("allocate claim %s/%s: %w", claim.Namespace, claim.Name, errOther)
	}
	p.pods++
	return nil
}

// GetPendingAllocation is the allocation of a claim that is decided and not given up, whether written or not.
func (t *Tracker) GetPendingAllocation(uid types.UID) *resourcev1.AllocationResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.pending[uid]; p != nil {
		return p.claim.Status.Allocation
	}
	return nil
}

// MaybeRemoveClaimPendingAllocation has one pod less go on with an allocation, or none.
func (t *Tracker) MaybeRemoveClaimPendingAllocation(uid types.UID, force bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pending[uid]
	if p == nil {
		return false
	}
	if p.pods--; p.pods > 0 && !force {
		return false
	}
	delete(t.pending, uid)
	return true
}

// AssumeClaimAfterAPICall has a claim as it was written count from now on, as long as the informer is behind.
func (t *Tracker) AssumeClaimAfterAPICall(claim *resourcev1.ResourceClaim) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.lister.ResourceClaims(claim.Namespace).Get(claim.Name)
	if err != nil {
		return fmt.Errorf("assume claim: %w", err)
	}
	if a := t.latest(c); older(a, claim) {
		t.assumed[cache.MetaObjectToName(claim)] = claim
	}
	return nil
}

// AssumedClaimRestore has what the informer knows count again.
func (t *Tracker) AssumedClaimRestore(namespace, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.assumed, cache.NewObjectName(namespace, name))
}

package claims

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/devices"
)

// Same says whether two allocations are of the same devices, whenever they were made.
func Same(a, b *resourcev1.AllocationResult) bool {
	if a == nil || b == nil {
		return a == b
	}
	return equality.Semantic.DeepEqual(a.Devices, b.Devices) && equality.Semantic.DeepEqual(a.NodeSelector, b.NodeSelector)
}

// Manager is what plugins know of devices.
type Manager struct {
	tracker *Tracker
	slices  offers
	classes classes
}

var _ fwk.SharedDRAManager = (*Manager)(nil)

// New makes a manager on informers that somebody else starts.
func New(f informers.SharedInformerFactory) (*Manager, error) {
	r := f.Resource().V1()
	// The factory is to start them, whether a plugin wants to hear of their changes or not.
	r.ResourceSlices().Informer()
	r.DeviceTaintRules().Informer()
	r.ResourceClaims().Informer()
	index := r.DeviceClasses().Informer()
	if err := index.AddIndexers(cache.Indexers{byResource: resourceOf}); err != nil {
		return nil, fmt.Errorf("index device classes by resources: %w", err)
	}
	return &Manager{
		tracker: NewTracker(r.ResourceClaims().Lister()),
		slices:  offers{r.ResourceSlices().Lister(), r.DeviceTaintRules().Lister()},
		classes: classes{r.DeviceClasses().Lister(), index.GetIndexer()},
	}, nil
}

// ResourceClaims implements [fwk.SharedDRAManager].
func (m *Manager) ResourceClaims() fwk.ResourceClaimTracker { return m.tracker }

// ResourceSlices implements [fwk.SharedDRAManager].
func (m *Manager) ResourceSlices() fwk.ResourceSliceLister { return m.slices }

// DeviceClasses implements [fwk.SharedDRAManager].
func (m *Manager) DeviceClasses() fwk.DeviceClassLister { return m.classes }

// DeviceClassResolver implements [fwk.SharedDRAManager].
func (m *Manager) DeviceClassResolver() fwk.DeviceClassResolver { return m.classes }

type offers struct {
	slices resourcelisters.ResourceSliceLister
	rules  resourcelisters.DeviceTaintRuleLister
}

// ListWithDeviceTaintRules implements [fwk.ResourceSliceLister].
func (s offers) ListWithDeviceTaintRules() ([]*resourcev1.ResourceSlice, error) {
	all, err := s.slices.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list resource slices: %w", err)
	}
	rules, err := s.rules.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list rules that taint devices: %w", err)
	}
	return devices.Tainted(all, rules), nil
}

type classes struct {
	lister resourcelisters.DeviceClassLister
	index  cache.Indexer
}

// List implements [fwk.DeviceClassLister].
func (c classes) List() ([]*resourcev1.DeviceClass, error) { return c.lister.List(labels.Everything()) }

// Get implements [fwk.DeviceClassLister].
func (c classes) Get(name string) (*resourcev1.DeviceClass, error) { return c.lister.Get(name) }

// byResource is the index of classes by the extended resource that they stand for.
const byResource = "extendedResource"

func resourceOf(o any) ([]string, error) {
	if c, ok := o.(*resourcev1.DeviceClass); ok && c.Spec.ExtendedResourceName != nil {
		return []string{*c.Spec.ExtendedResourceName}, nil
	}
	return nil, nil
}

// GetDeviceClass implements [fwk.DeviceClassResolver]. Of several classes that stand for a resource it is the newest,
// and of those the first by name.
func (c classes) GetDeviceClass(name corev1.ResourceName) *resourcev1.DeviceClass {
	if class, is := strings.CutPrefix(string(name), resourcev1.ResourceDeviceClassPrefix); is {
		found, err := c.lister.Get(class)
		if err != nil {
			return nil
		}
		return found
	}
	all, err := c.index.ByIndex(byResource, string(name))
	if err != nil {
		return nil // the index is there since New
	}
	var best *resourcev1.DeviceClass
	for _, o := range all {
		class, ok := o.(*resourcev1.DeviceClass)
		if !ok {
			continue
		}
		if best == nil || best.CreationTimestamp.Before(&class.CreationTimestamp) ||
			best.CreationTimestamp.Equal(&class.CreationTimestamp) && class.Name < best.Name {
			best = class
		}
	}
	return best
}

package pod

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/pod/spec"
)

// badge is a resource of which every pod has some. It notes what it is asked for.
type badge struct {
	name           string
	log            *[]string
	mu             *sync.Mutex
	refuse, broken error
	changed, freed chan struct{}
}

func (b *badge) note(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*b.log = append(*b.log, b.name+" "+what)
}

func (b *badge) set(refuse, broken error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse, b.broken = refuse, broken
}

func (b *badge) Name() string              { return b.name }
func (b *badge) Concerns(*corev1.Pod) bool { return true }

func (b *badge) Admit(p *corev1.Pod, ran bool) error {
	b.note("admits")
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refuse
}

func (b *badge) Prepare(context.Context, *corev1.Pod) error {
	b.note("prepares")
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken == nil {
		return nil
	}
	return &PrepareError{Reason: plan.ReasonClaims, Event: "Failed: ", Err: b.broken}
}

func (b *badge) Inject(_ context.Context, _ *corev1.Pod, _ *corev1.Container, into *spec.Injection) error {
	b.note("injects")
	into.AddCDI("test/badge=" + b.name)
	return nil
}

func (b *badge) Health(*corev1.Pod) map[string][]corev1.ResourceStatus {
	return map[string][]corev1.ResourceStatus{"main": {{Name: corev1.ResourceName(b.name)}}}
}

func (b *badge) Changes() (changed, freed <-chan struct{}) { return b.changed, b.freed }

func (b *badge) Release(context.Context, types.UID) error {
	b.note("releases")
	return nil
}

func (b *badge) Synced(func(types.UID) bool) error { return nil }

// Resources are asked for in their order, and taken back in the other; what one has against a pod is told, and asked
// again when it says so.
func TestNodeResources(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.stop()
		var log []string
		var mu sync.Mutex
		a := &badge{name: "a", log: &log, mu: &mu, changed: make(chan struct{}), freed: make(chan struct{})}
		b := &badge{name: "b", log: &log, mu: &mu, changed: make(chan struct{}), freed: make(chan struct{})}
		noted := func(want string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(log, ", "); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			log = nil
		}
		n.cfg.Given.Resources = []NodeResource{a, b}
		n.start()

		b.set(errors.New("none left"), nil)
		pod := podtest.New("web")
		n.apply(pod)
		n.is("web", "Pending(UnexpectedAdmissionError) main:0:ContainerCreating")
		noted("a admits, b admits, a releases")

		b.set(nil, errors.New("on fire"))
		b.changed <- struct{}{}
		n.pass(0)
		if got := n.message("web", plan.ReasonClaims); got != "Failed: on fire" {
			t.Errorf("event %q", got)
		}
		noted("a admits, b admits, a prepares, b prepares")

		b.set(nil, nil)
		b.freed <- struct{}{}
		n.pass(0)
		n.is("web", "Running main:0:running")
		noted("a prepares, b prepares, b injects, a injects")
		health := n.pod("web").Status.ContainerStatuses[0].AllocatedResourcesStatus
		if len(health) != 2 || health[0].Name != "b" || health[1].Name != "a" {
			t.Errorf("health %+v", health)
		}
		n.rt.locked(func() {
			var names []string
			for _, c := range n.rt.containers {
				for _, d := range c.config.GetCDIDevices() {
					names = append(names, d.GetName())
				}
			}
			if !slices.Equal(names, []string{"test/badge=b", "test/badge=a"}) {
				t.Errorf("devices %v", names)
			}
		})

		n.restart()
		n.is("web", "Running main:0:running")
		noted("a admits, b admits")
		n.remove(pod)
		n.pass(time.Minute)
		n.gone(pod)
		noted("b releases, a releases")
	})
}

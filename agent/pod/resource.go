package pod

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/pod/admission"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// NodeResource is something of the node that pods are given for themselves, beside what their requests and limits share
// out: CPUs and memory nodes, devices of plugins, devices of resource claims. It keeps its own record of who has what.
// All methods can be repeated.
type NodeResource interface {
	// Name is what errors and traces call it.
	Name() string
	// Concerns says whether the pod asks for any of it, or has some.
	Concerns(pod *corev1.Pod) bool
	// Admit gives the pod what it asks for, or says why it cannot have it, as a *pinning.Refusal where that has a
	// reason of its own. ran says that the pod runs already.
	Admit(pod *corev1.Pod, ran bool) error
	// Prepare gets ready what the pod was given, before the pod's sandbox is made. It may take its time: other pods go
	// on. Its error may be a *[PrepareError].
	Prepare(ctx context.Context, pod *corev1.Pod) error
	// Inject adds what the container is made with for it.
	Inject(ctx context.Context, pod *corev1.Pod, c *corev1.Container, into *spec.Injection) error
	// Health is how what the pod's containers have is, by the containers' names.
	Health(pod *corev1.Pod) map[string][]corev1.ResourceStatus
	// Changes tells when its pods are to look again. Either channel may be nil.
	Changes() (changed, freed <-chan struct{})
	// Release takes back what the pod has, when nothing of it runs any more.
	Release(ctx context.Context, uid types.UID) error
	// Synced takes back what pods have that are not here, when all that are wanted are known.
	Synced(here func(types.UID) bool) error
}

// PrepareError says why a resource cannot be got ready, in the words of the API.
type PrepareError struct {
	Reason string // of the event, and of the containers that wait for it
	Event  string // what the event says before the error, with what parts the two
	Err    error
}

func (e *PrepareError) Error() string { return e.Err.Error() }
func (e *PrepareError) Unwrap() error { return e.Err }

// resources are all that a node has.
type resources []NodeResource

// admit gives a pod what is to be its own. Of several none is taken from others for a pod that does not get the rest;
// what a pod has that runs it keeps.
func (all resources) admit(ctx context.Context, pod *corev1.Pod, ran bool) error {
	for i, r := range all {
		err := r.Admit(pod, ran)
		if err == nil {
			continue
		}
		if !ran {
			for _, had := range all[:i] {
				err = errors.Join(err, had.Release(ctx, pod.UID))
			}
		}
		return err
	}
	return nil
}

// inject is what a container gets of all of them.
func (all resources) inject(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (spec.Injection, error) {
	var out spec.Injection
	for _, r := range slices.Backward(all) {
		if err := r.Inject(ctx, pod, c, &out); err != nil {
			return out, err
		}
	}
	return out, nil
}

// health is how everything is that the pod's containers have, by their names.
func (all resources) health(pod *corev1.Pod) map[string][]corev1.ResourceStatus {
	var out map[string][]corev1.ResourceStatus
	for _, r := range slices.Backward(all) {
		of := r.Health(pod)
		if out == nil {
			out = of
			continue
		}
		for name, list := range of {
			out[name] = append(out[name], list...)
		}
	}
	return out
}

func (all resources) synced(here func(types.UID) bool) error {
	var errs []error
	for _, r := range all {
		errs = append(errs, r.Synced(here))
	}
	return errors.Join(errs...)
}

// renewer is a resource by what it tells volumes of pods may have to be brought up to date, too.
type renewer interface {
	Renews(pod *corev1.Pod) bool
}

// renew says whether the pod's volumes are to be brought up to date for something that one of them has told.
func (all resources) renew(pod *corev1.Pod) bool {
	return slices.ContainsFunc(all, func(r NodeResource) bool {
		n, ok := r.(renewer)
		return ok && n.Renews(pod)
	})
}

// named says whether there is one of that name.
func (all resources) named(name string) bool {
	return slices.ContainsFunc(all, func(r NodeResource) bool { return r.Name() == name })
}

// resourceChange is what a resource has told.
type resourceChange struct {
	resource NodeResource
	freed    bool // what a pod has failed to get may be had now
}

// watchResource hands on what a resource tells, until ctx ends.
func watchResource(ctx context.Context, r NodeResource, to chan<- resourceChange) {
	changed, freed := r.Changes()
	for {
		c := resourceChange{resource: r}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-freed:
			c.freed = true
		}
		select {
		case <-ctx.Done():
			return
		case to <- c:
		}
	}
}

// admitResources gives a pod what is to be its own. One that cannot have it now waits, like others that the node has
// something against; one that runs already goes on, because an agent's restart is no event in its life.
func (a *admitter) admitResources(ctx context.Context, pod *corev1.Pod, ran bool) *admission.Verdict {
	err := a.node.resources.admit(ctx, pod, ran)
	if err == nil {
		return nil
	}
	v := &admission.Verdict{Waiting: status.Waiting{Reason: pinning.ReasonAdmission, Message: err.Error()}}
	if r, ok := errors.AsType[*pinning.Refusal](err); ok {
		v.Reason, v.Final = r.Reason, r.Final
	}
	if ran {
		a.node.event(pod, corev1.EventTypeWarning, v.Reason, "%v; the pod goes on with what it has", err)
		return nil
	}
	if !v.Final {
		v.Message += "; the pod starts when it can be had"
	}
	return v
}

// resourceChanged tells the pods that have some of a resource or wait for it: their status may be another one, or what
// has failed for want of it may be had. A pod that was not taken in for want of it is asked for again.
func (m *Manager) resourceChanged(ctx context.Context, c resourceChange) {
	for _, w := range m.node.registry.all() {
		switch {
		case !c.resource.Concerns(w.share.Pod):
		case c.freed:
			w.mail.putObject()
		default:
			w.mail.ring()
		}
	}
	if !c.freed {
		m.retryHeld(ctx)
	}
}

// forgetResources takes back what pods had that are not there any more.
func (n *node) forgetResources() {
	if err := n.resources.synced(n.registry.has); err != nil {
		n.cfg.Log.Warn("CPUs, devices or claims of pods that are gone are not free yet", "error", err)
	}
}

// sharedOut is a resource as the environments of pods have it: of pods that have none of it it is not asked for, and
// one that takes its time holds up no other pod.
type sharedOut struct {
	resource NodeResource
	node     *node
}

// Name is part of [environment.Resource].
func (r sharedOut) Name() string { return r.resource.Name() }

// Prepare is part of [environment.Resource].
func (r sharedOut) Prepare(ctx context.Context, pod *corev1.Pod) error {
	if !r.resource.Concerns(pod) {
		return nil
	}
	return r.node.starting.outside(func() error { return r.resource.Prepare(ctx, pod) })
}

// Release is part of [environment.Resource].
func (r sharedOut) Release(ctx context.Context, pod *corev1.Pod) error {
	release := func() error { return r.resource.Release(ctx, pod.UID) }
	var err error
	if r.resource.Concerns(pod) {
		err = r.node.stopping.outside(release)
	} else {
		err = release()
	}
	if err == nil {
		r.node.askAgain()
	}
	return err
}

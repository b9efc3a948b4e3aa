package volumebinding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// changes tell who waits that a claim is another one.
type changes struct {
	mu   sync.Mutex
	next chan struct{}
}

// wait is a channel that is closed with the next change.
func (c *changes) wait() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = make(chan struct{})
	}
	return c.next
}

func (c *changes) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		close(c.next)
		c.next = nil
	}
}

func (c *changes) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(any, any) { c.tell() },
		DeleteFunc: func(any) { c.tell() },
	}
}

// PreBindPreFlight says whether there is anything to bind.
func (v *volumeBinding) PreBindPreFlight(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	if c, ok := chosen(state, node); !ok || len(c.bind) == 0 && len(c.provision) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return &fwk.PreBindPreFlightResult{AllowParallel: true}, nil
}

func chosen(state fwk.CycleState, node string) (choice, bool) {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return choice{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.found[node]
	return c, ok
}

// PreBind writes which volume is whose, and for which node volumes are to be made, and waits until the claims have
// them. The binder does the rest, also when this process is gone.
func (v *volumeBinding) PreBind(ctx context.Context, state fwk.CycleState, _ *corev1.Pod, node string) *fwk.Status {
	c, ok := chosen(state, node)
	if !ok {
		return fwk.AsStatus(fmt.Errorf("bind volumes: none was chosen for node %s", node))
	}
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	if err := v.write(ctx, c, node); err != nil {
		return fwk.AsStatus(fmt.Errorf("binding volumes: %w", err))
	}
	for {
		changed := v.changes.wait()
		done, err := v.areBound(c, node)
		if err != nil {
			return fwk.AsStatus(fmt.Errorf("binding volumes: %w", err))
		}
		if done {
			v.assumed.giveBack(c)
			return nil
		}
		select {
		case <-ctx.Done():
			return fwk.AsStatus(fmt.Errorf("binding volumes: %w", ctx.Err()))
		case <-changed:
		}
	}
}

func (v *volumeBinding) write(ctx context.Context, c choice, node string) error {
	for _, p := range c.bind {
		o, dirty, err := volume.GetBindVolumeToClaim(p.volume, p.claim)
		if err == nil && dirty {
			_, err = v.client.CoreV1().PersistentVolumes().Update(ctx, o, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("bind volume %s: %w", p.volume.Name, err)
		}
	}
	for _, claim := range c.provision {
		if claim.Annotations[volume.AnnSelectedNode] == node {
			// It is to be made already, unless its provisioner has given up on the node since.
			continue
		}
		o := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, volume.AnnSelectedNode, node)
		if _, err := v.client.CoreV1().PersistentVolumeClaims(o.Namespace).Update(ctx, o, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("ask for a volume of claim %s/%s: %w", o.Namespace, o.Name, err)
		}
	}
	return nil
}

// areBound says whether all claims have their volumes; an error: one will not have it on this node.
func (v *volumeBinding) areBound(c choice, node string) (bool, error) {
	all := true
	check := func(was *corev1.PersistentVolumeClaim, made bool) error {
		now, err := v.claims.PersistentVolumeClaims(was.Namespace).Get(was.Name)
		switch {
		case apierrors.IsNotFound(err) || err == nil && (now.UID != was.UID || now.DeletionTimestamp != nil):
			return fmt.Errorf("claim %s/%s is gone", was.Namespace, was.Name)
		case err != nil:
			return err
		case isBound(now):
			return v.onNode(now, node)
		}
		all = false
		// The cache is behind until it has another version than the one that was written over.
		if made && now.ResourceVersion != was.ResourceVersion && now.Annotations[volume.AnnSelectedNode] != node {
			return fmt.Errorf("provisioning failed for PVC %q", was.Name)
		}
		return nil
	}
	var failed []error
	for _, p := range c.bind {
		failed = append(failed, check(p.claim, false))
	}
	for _, claim := range c.provision {
		failed = append(failed, check(claim, true))
	}
	err := errors.Join(failed...)
	return all && err == nil, err
}

// onNode refuses a volume that a claim was given and that the node cannot have.
func (v *volumeBinding) onNode(claim *corev1.PersistentVolumeClaim, name string) error {
	found, err := v.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return nil // the cache is behind
	}
	if err != nil {
		return err
	}
	n, err := v.nodes.Get(name)
	if err != nil {
		return fmt.Errorf("find node %s: %w", name, err)
	}
	if err := volume.CheckNodeAffinity(found, n.Labels); err != nil {
		return fmt.Errorf("pv %q node affinity doesn't match node %q: %w", found.Name, name, err)
	}
	return nil
}

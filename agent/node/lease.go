package node

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// lease is that by which the cluster knows that the node lives. It is renewed by a goroutine of its own, which waits
// for nothing else of the node.
type lease struct {
	client   Client
	node     string
	duration time.Duration
	uid      func() types.UID // of the Node; "": there is none
	saw      func(of object, version string)
	wake     chan struct{}
	log      *slog.Logger

	latest *coordinationv1.Lease // as the server has answered last; nil: it has to be asked
}

// renewals is how often a lease is renewed while it lasts, as by kubelet: three may fail.
const renewals = 4

// run renews the lease until ctx ends.
func (l *lease) run(ctx context.Context) {
	every := l.duration / renewals
	// With a server that comes back the node is alive again at once: it is asked often, and that is cheap where nobody
	// listens.
	p := pause{least: 200 * time.Millisecond, most: min(3*time.Second, every)}
	t := trouble{log: l.log, what: "renew the Lease"}
	for {
		err := l.renew(ctx, min(askServer, every))
		wait := every + jitterOfLease(every)
		if err != nil && ctx.Err() == nil {
			t.failed(err)
			wait = p.after(err)
		} else {
			t.done()
			p.reset()
		}
		bell := l.wake
		if err != nil {
			bell = nil // a Node that changes is no reason to press a server that is busy
		}
		if !sleep(ctx, wait, bell) {
			return
		}
	}
}

// jitterOfLease is little, as kubelet's: three of the renewals have to fail before the lease is over.
func jitterOfLease(every time.Duration) time.Duration { return jitter(every/25) - every/25 }

// renew renews the lease that is known, by an update alone, and asks for it where that is not the newest.
func (l *lease) renew(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for try := 0; ; try++ {
		err := l.attempt(ctx)
		switch {
		case err == nil:
			return nil
		case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
			l.latest = nil
			if try < 2 {
				continue
			}
		}
		return fmt.Errorf("renew lease: %w", err)
	}
}

func (l *lease) attempt(ctx context.Context) error {
	key := types.NamespacedName{Namespace: corev1.NamespaceNodeLease, Name: l.node}
	if l.latest == nil {
		var have coordinationv1.Lease
		err := l.client.Get(ctx, leases, key, &have)
		switch {
		case apierrors.IsNotFound(err):
			return l.create(ctx, key)
		case err != nil:
			return err
		case have.Name != l.node: // the update would be of another
			return fmt.Errorf("%w: lease %q", errOther, have.Name)
		}
		l.latest = &have
	}
	want := l.latest.DeepCopy()
	l.fill(want)
	var answer coordinationv1.Lease
	if err := l.client.Update(ctx, leases, want, &answer); err != nil {
		return err
	}
	return l.took(&answer)
}

// create makes the lease once there is a Node, with which it is to go: without an owner it would stay for ever.
func (l *lease) create(ctx context.Context, key types.NamespacedName) error {
	if l.uid() == "" {
		return nil
	}
	want := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	l.fill(want)
	var answer coordinationv1.Lease
	if err := l.client.Create(ctx, leases, want, &answer); err != nil {
		return err
	}
	return l.took(&answer)
}

// took keeps an answer. An object that was not asked for would have the next update be of another.
func (l *lease) took(answer *coordinationv1.Lease) error {
	if answer.Name != l.node {
		l.latest = nil
		return fmt.Errorf("%w: lease %q", errOther, answer.Name)
	}
	l.latest = answer
	l.saw(ofLease, answer.ResourceVersion)
	return nil
}

// fill says that the node lives. The time is the machine's, as every server expects; who watches goes by when it
// changes, so that a clock which is wrong does no harm.
func (l *lease) fill(o *coordinationv1.Lease) {
	seconds, now := int32(l.duration/time.Second), metav1.NewMicroTime(time.Now())
	o.Spec.HolderIdentity, o.Spec.LeaseDurationSeconds, o.Spec.RenewTime = &l.node, &seconds, &now
	if uid := l.uid(); uid != "" {
		o.OwnerReferences = owned(o.OwnerReferences, l.node, uid)
	}
}

// owned are the owners of an object that goes with a Node. One that had the name before is no owner any more, or what
// it owns would go with it.
func owned(owners []metav1.OwnerReference, node string, uid types.UID) []metav1.OwnerReference {
	var out []metav1.OwnerReference
	for _, o := range owners {
		if o.Kind != "Node" || o.Name != node {
			out = append(out, o)
		}
	}
	return append(out, metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node, UID: uid})
}

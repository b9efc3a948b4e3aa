package controller

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The times of Kubernetes: who has not renewed the lease for renewDeadline stops, and the others wait for leaseLife.
// In between it has the time to stop.
const (
	leaseLife     = 15 * time.Second
	renewDeadline = 10 * time.Second
	renewEvery    = 2 * time.Second
)

// Election is by which one of several members acts: by a Lease of kube-system.
type Election struct {
	Client   kubernetes.Interface
	Lease    string
	Identity string // of this member, another one at each start
	Log      *slog.Logger
}

// Run calls lead each time that this member is elected, and is a candidate again when lead has returned. The context of
// lead ends with ctx, or when the lease is lost. The lease is given back after lead has returned, so that the next one
// does not act beside it.
func (e Election) Run(ctx context.Context, lead func(context.Context)) error {
	for ctx.Err() == nil {
		if err := e.term(ctx, lead); err != nil {
			return err
		}
	}
	return nil
}

func (e Election) term(ctx context.Context, lead func(context.Context)) error {
	// The library gives the lease back as soon as its context ends, and what it has started may still be at work then.
	held, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	led := make(chan struct{})
	began := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: e.Lease}, Client: e.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
		},
		LeaseDuration: leaseLife, RenewDeadline: renewDeadline, RetryPeriod: renewEvery, ReleaseOnCancel: true, Name: e.Lease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(holding context.Context) {
				close(began)
				defer close(led)
				if holding.Err() != nil {
					return // it was asked to end while it was elected
				}
				e.Log.Info("this member leads", "lease", e.Lease)
				leading, stop := context.WithCancel(holding)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				lead(leading)
				release()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("elect who leads: %w", err)
	}
	// As a candidate it stops at once, as the leader when what it leads has stopped.
	defer context.AfterFunc(ctx, func() {
		select {
		case <-began:
		default:
			release()
		}
	})()
	elector.Run(held)
	select {
	case <-began:
		<-led
		e.Log.Info("this member leads no more", "lease", e.Lease)
	default:
	}
	return nil
}

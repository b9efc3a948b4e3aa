// Package verticalautoscaler recommends how much CPU time and memory pods ask for, by what they use, and resizes those
// that run, in place. What it recommends, and which pods may be changed at what time, the libraries of Kubernetes'
// Vertical Pod Autoscaler decide, on the custom resources of that project; they are the user's to install.
package verticalautoscaler

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	vpav1 "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/apis/autoscaling.k8s.io/v1"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/client/clientset/versioned"
	vpainformers "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/client/informers/externalversions"
	vpalisters "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/client/listers/autoscaling.k8s.io/v1"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender/input/oom"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
)

const (
	// every is how often what pods use is looked at: nobody tells of it. It is the project's own interval.
	every = time.Minute
	// callTimeout bounds what the project's libraries ask the API for, which they do without a deadline.
	callTimeout = 30 * time.Second
	// round is the one key of the loop: all autoscalers are looked at together, since all pods' metrics are one answer.
	round = "all"
)

// Deps are what the controller is made of.
type Deps struct {
	Config *rest.Config
	Client kubernetes.Interface // made by New, of Config
	Pods   coreinformers.PodInformer
	Own    informers.SharedInformerFactory
	Events record.EventRecorder
	Log    *slog.Logger
}

type autoscaler struct {
	deps        Deps
	custom      versioned.Interface
	scalers     vpalisters.VerticalPodAutoscalerLister
	checkpoints vpalisters.VerticalPodAutoscalerCheckpointLister
	log         *slog.Logger
	loop        *controller.Loop[string]
	// active says that there are autoscalers, whose model takes OOM kills from what kills has room for.
	active atomic.Bool

	// What follows belongs to the one worker.
	owners *owners
	kills  oom.Observer
	model  *model
	update *updater
}

// New makes the controller. It does nothing until the custom resources are there.
func New(d Deps) (controller.Controller, error) {
	// Custom resources have no Protobuf, which everybody else speaks here.
	plain := rest.CopyConfig(d.Config)
	plain.ContentType, plain.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	watching, err := versioned.NewForConfig(plain)
	if err != nil {
		return nil, fmt.Errorf("make client of vertical autoscalers: %w", err)
	}
	// A watch lasts longer than a call may, so that those who call have clients of their own.
	plain.Timeout = callTimeout
	d.Config = rest.CopyConfig(d.Config)
	d.Config.Timeout = callTimeout
	custom, err := versioned.NewForConfig(plain)
	if err != nil {
		return nil, fmt.Errorf("make client of vertical autoscalers: %w", err)
	}
	if d.Client, err = kubernetes.NewForConfig(d.Config); err != nil {
		return nil, fmt.Errorf("make client of vertical autoscalers: %w", err)
	}
	factory := vpainformers.NewSharedInformerFactoryWithOptions(watching, 0, vpainformers.WithTransform(controller.WithoutManagers))
	scalers := factory.Autoscaling().V1().VerticalPodAutoscalers()
	checkpoints := factory.Autoscaling().V1().VerticalPodAutoscalerCheckpoints()
	for _, i := range []cache.SharedIndexInformer{scalers.Informer(), checkpoints.Informer()} {
		if err := i.SetWatchErrorHandlerWithContext(quiet); err != nil {
			return nil, fmt.Errorf("watch vertical autoscalers: %w", err)
		}
	}
	a := &autoscaler{deps: d, custom: custom, scalers: scalers.Lister(), checkpoints: checkpoints.Lister(), log: d.Log, kills: oom.NewObserver()}
	none := func(any) []string { return nil }
	a.loop = controller.NewLoop(d.Log, 1, a.sync).
		WatchOwn(checkpoints.Informer(), none).WatchOwn(scalers.Informer(), none).WatchChanges(scalers.Informer(), ofScaler)
	for _, i := range ownerKinds(d.Own) {
		a.loop.Watch(i, none)
	}
	// An OOM kill is what a pod's change tells, and is counted when samples are.
	a.loop.WatchChanges(d.Pods.Informer(), func(before, after any) []string {
		if before != nil && after != nil && a.active.Load() {
			a.kills.OnUpdate(before, after)
		}
		return nil
	})
	return a, nil
}

// Run implements [controller.Controller].
func (a *autoscaler) Run(ctx context.Context) {
	// The libraries' own goroutines end with it.
	owners, err := newOwners(ctx, a.deps)
	if err != nil {
		a.log.Error("vertical autoscalers are not looked at", "error", err)
		return
	}
	if a.update, err = newUpdater(a.deps, owners); err != nil {
		a.log.Error("vertical autoscalers are not looked at", "error", err)
		return
	}
	a.owners = owners
	a.loop.Run(ctx)
}

// quiet logs why the custom resources cannot be watched, but for that there are none.
func quiet(ctx context.Context, r *cache.Reflector, err error) {
	if !apierrors.IsNotFound(err) {
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}
}

// ofScaler has a new autoscaler looked at, and one of which something else is wanted. What becomes of it its status
// tells, and nobody needs to look for that.
func ofScaler(before, after any) []string {
	was, _ := before.(*vpav1.VerticalPodAutoscaler)
	is, _ := after.(*vpav1.VerticalPodAutoscaler)
	if was != nil && is != nil && equality.Semantic.DeepEqual(was.Spec, is.Spec) {
		return nil
	}
	return []string{round}
}

// sync takes a sample of what all pods use, recommends, and resizes what is to be resized. Where the libraries panic,
// for which strangers' objects may be the reason, they begin anew with what their checkpoints have.
func (a *autoscaler) sync(ctx context.Context, _ string) (next time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			a.model = nil
			a.log.Debug("vertical autoscalers: stack of a panic", "stack", string(debug.Stack()))
			err = fmt.Errorf("look at vertical autoscalers: panic: %v", p)
		}
	}()
	all, err := a.scalers.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("list vertical autoscalers: %w", err)
	}
	a.active.Store(len(all) > 0)
	if len(all) == 0 { // the first one wakes
		a.model = nil
		return 0, nil
	}
	if a.model == nil {
		a.model = a.newModel(ctx)
	}
	a.model.RunOnce()
	if err := a.update.round(ctx, all); err != nil {
		return 0, err
	}
	return every, nil
}

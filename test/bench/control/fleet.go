package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	fleetPods     = 2000 // of a Deployment
	fleetJob      = 1000
	fleetSet      = 500 // pods of a StatefulSet
	fleetNodes    = 1000
	fleetServices = 300
	fleetServed   = 200 // pods that each of these selects
	fleetClaims   = 1000
	// fleetLimit bounds a step.
	fleetLimit = 10 * time.Minute
)

// fleets is how long controllers take for what is large. No pod has a node or a kubelet.
func fleets(ctx context.Context, c config, start starter, dir string) ([]figure, error) {
	c.controllers, c.scheduler = true, false
	p, err := start(ctx, c, dir)
	if err != nil {
		return nil, err
	}
	defer p.processes.stop()
	if err := p.space(ctx, metav1.ObjectMeta{Name: one}); err != nil {
		return nil, err
	}
	t := newTally()
	defer t.follow(ctx, p.client)()
	var all []figure
	for _, s := range fleetSteps(p) {
		if s.before != nil {
			if err := s.before(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
		}
		figures, err := s.take(ctx, p, t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, figures...)
	}
	return all, nil
}

// take does it, and waits for what follows from it.
func (s fleetStep) take(ctx context.Context, p *plane, t *tally) ([]figure, error) {
	ctx, cancel := context.WithTimeout(ctx, fleetLimit)
	defer cancel()
	used, err := p.processes.cpu()
	if err != nil {
		return nil, err
	}
	end, began := p.profile(ctx, "fleet-"+s.name), time.Now()
	if err := s.do(ctx); err != nil {
		return nil, err
	}
	if err := t.await(ctx, s.reached); err != nil {
		return nil, err
	}
	took := time.Since(began)
	cost, err := p.processes.since(used)
	if err != nil {
		return nil, err
	}
	return []figure{{s.name, "s", took.Seconds()}, {s.name + ": CPU time", "s", cost / 1000}}, end()
}

// fleetStep is something that is done, and when it is.
type fleetStep struct {
	name       string
	before, do func(context.Context) error
	reached    func(*tally) bool
}

// tally counts objects as a watch tells of them.
type tally struct {
	mu      sync.Mutex
	pods    map[types.UID]string // names of what they are of
	served  map[types.UID]int    // ready addresses in a slice
	bound   map[types.UID]bool   // claims
	changed chan struct{}
}

func newTally() *tally {
	return &tally{pods: map[types.UID]string{}, served: map[types.UID]int{}, bound: map[types.UID]bool{}, changed: make(chan struct{}, 1)}
}

const fleetLabel = "app"

// follow counts until what it returns is called.
func (t *tally) follow(ctx context.Context, c kubernetes.Interface) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	f := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace(one))
	watched := func(i cache.SharedIndexInformer, is func(o any), gone func(o any)) {
		locked := func(do func(any)) func(any) {
			return func(o any) {
				t.mu.Lock()
				defer t.mu.Unlock()
				if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = d.Obj
				}
				do(o)
				select {
				case t.changed <- struct{}{}:
				default:
				}
			}
		}
		_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{ // it fails when the informer has ended
			AddFunc: locked(is), UpdateFunc: func(_, o any) { locked(is)(o) }, DeleteFunc: locked(gone),
		})
	}
	watched(f.Core().V1().Pods().Informer(),
		func(o any) { p := o.(*corev1.Pod); t.pods[p.UID] = p.Labels[fleetLabel] },
		func(o any) { delete(t.pods, o.(*corev1.Pod).UID) })
	watched(f.Discovery().V1().EndpointSlices().Informer(), func(o any) {
		s, ready := o.(*discoveryv1.EndpointSlice), 0
		for i := range s.Endpoints {
			if r := s.Endpoints[i].Conditions.Ready; r != nil && *r {
				ready++
			}
		}
		t.served[s.UID] = ready
	}, func(o any) { delete(t.served, o.(*discoveryv1.EndpointSlice).UID) })
	watched(f.Core().V1().PersistentVolumeClaims().Informer(),
		func(o any) {
			p := o.(*corev1.PersistentVolumeClaim)
			t.bound[p.UID] = p.Status.Phase == corev1.ClaimBound
		},
		func(o any) { delete(t.bound, o.(*corev1.PersistentVolumeClaim).UID) })
	f.StartWithContext(ctx)
	f.WaitForCacheSync(ctx.Done())
	return func() { cancel(); f.Shutdown() }
}

func (t *tally) await(ctx context.Context, reached func(*tally) bool) error {
	for {
		t.mu.Lock()
		is, pods := reached(t), len(t.pods)
		t.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-t.changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for what follows: %w (there are %d pods)", ctx.Err(), pods)
		}
	}
}

// of says that there are so many pods of something.
func of(app string, count int) func(*tally) bool {
	return func(t *tally) bool {
		is := 0
		for _, a := range t.pods {
			if a == app {
				is++
			}
		}
		return is == count
	}
}

// template is of pods that nobody runs.
func template(app string, restart corev1.RestartPolicy) (metav1.LabelSelector, corev1.PodTemplateSpec) {
	set := map[string]string{fleetLabel: app}
	spec := makePod("", 0, nil).Spec
	spec.RestartPolicy = restart
	return metav1.LabelSelector{MatchLabels: set}, corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: set}, Spec: spec}
}

func fleetSteps(p *plane) []fleetStep {
	foreground := metav1.DeletePropagationForeground
	gone := metav1.DeleteOptions{PropagationPolicy: &foreground}
	apps, jobs := p.client.AppsV1(), p.client.BatchV1().Jobs(one)
	return append([]fleetStep{
		{name: "Deployment of 2,000: pods made", reached: of("d", fleetPods), do: func(ctx context.Context) error {
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
			selector, template := template("d", corev1.RestartPolicyAlways)
			d.Spec = appsv1.DeploymentSpec{
				Replicas: new(int32(fleetPods)), Selector: &selector, Template: template,
				Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			}
			_, err := apps.Deployments(one).Create(ctx, d, metav1.CreateOptions{})
			return err
		}},
		{name: "the same: scaled to 1,000", reached: of("d", fleetPods/2), do: func(ctx context.Context) error {
			patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, fleetPods/2)
			_, err := apps.Deployments(one).Patch(ctx, "d", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}},
		{name: "the same: all made anew", reached: anew("d", fleetPods/2), do: func(ctx context.Context) error {
			patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"example.com/changed":"1"}}}}}`)
			_, err := apps.Deployments(one).Patch(ctx, "d", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}},
		{name: "the same: gone", reached: of("d", 0), do: func(ctx context.Context) error {
			return apps.Deployments(one).Delete(ctx, "d", gone)
		}},
		{name: "Job of 1,000 at once: pods made", reached: of("j", fleetJob), do: func(ctx context.Context) error {
			_, template := template("j", corev1.RestartPolicyNever)
			j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j"}}
			j.Spec = batchv1.JobSpec{Parallelism: new(int32(fleetJob)), Completions: new(int32(fleetJob)), Template: template}
			_, err := jobs.Create(ctx, j, metav1.CreateOptions{})
			return err
		}},
		{name: "the same: gone", reached: of("j", 0), do: func(ctx context.Context) error { return jobs.Delete(ctx, "j", gone) }},
		{name: "StatefulSet of 500 in parallel: pods made", reached: of("s", fleetSet), do: func(ctx context.Context) error {
			selector, template := template("s", corev1.RestartPolicyAlways)
			s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
			s.Spec = appsv1.StatefulSetSpec{
				Replicas: new(int32(fleetSet)), Selector: &selector, Template: template, ServiceName: "s", PodManagementPolicy: appsv1.ParallelPodManagement,
			}
			_, err := apps.StatefulSets(one).Create(ctx, s, metav1.CreateOptions{})
			return err
		}},
		{name: "the same: gone", reached: of("s", 0), do: func(ctx context.Context) error { return apps.StatefulSets(one).Delete(ctx, "s", gone) }},
	}, otherSteps(p)...)
}

// anew says that there are so many pods of something, and none of those that there were when it was asked first.
func anew(app string, count int) func(*tally) bool {
	var old map[types.UID]bool
	return func(t *tally) bool {
		if old == nil {
			old = map[types.UID]bool{}
			for uid := range t.pods {
				old[uid] = true
			}
		}
		for uid := range t.pods {
			if old[uid] {
				return false
			}
		}
		return of(app, count)(t)
	}
}

// otherSteps are of claims, DaemonSets and Services. Nodes come last: nobody renews their leases, which controllers
// have more and more to do for.
func otherSteps(p *plane) []fleetStep {
	sets := p.client.AppsV1().DaemonSets(one)
	ready := func(count int) func(*tally) bool {
		return func(t *tally) bool {
			full := 0
			for _, n := range t.served {
				if n == count {
					full++
				}
			}
			return full == fleetServices*((fleetServed+99)/100)
		}
	}
	return []fleetStep{
		{
			name: "1,000 claims with volumes that name them: bound",
			do:   func(ctx context.Context) error { return claims(ctx, p) },
			reached: func(t *tally) bool {
				is := 0
				for _, bound := range t.bound {
					if bound {
						is++
					}
				}
				return is == fleetClaims
			},
		},
		{
			name:   "DaemonSet on 1,000 nodes: pods made",
			before: func(ctx context.Context) error { return p.makeNodes(ctx, workload{nodes: fleetNodes}) },
			do: func(ctx context.Context) error {
				selector, template := template("n", corev1.RestartPolicyAlways)
				d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: appsv1.DaemonSetSpec{Selector: &selector, Template: template}}
				_, err := sets.Create(ctx, d, metav1.CreateOptions{})
				return err
			},
			reached: of("n", fleetNodes),
		},
		{name: "the same: gone", reached: of("n", 0), do: func(ctx context.Context) error { return sets.Delete(ctx, "n", metav1.DeleteOptions{}) }},
		{
			name: "300 Services of the same 200 pods: slices full",
			before: func(ctx context.Context) error {
				return p.fill(ctx, "served-", fleetServed, func(i int, pod *corev1.Pod) {
					pod.Labels, pod.Spec.NodeName = map[string]string{fleetLabel: "served"}, fmt.Sprint("node-", i)
				})
			},
			do:      func(ctx context.Context) error { return serve(ctx, p) },
			reached: ready(100),
		},
	}
}

// serve makes Services, and has the pods that they select be ready.
func serve(ctx context.Context, p *plane) error {
	err := p.many(ctx, fleetServices, func(ctx context.Context, c kubernetes.Interface, i int) error {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s-", i)}, Spec: corev1.ServiceSpec{
			Selector: labels.Set{fleetLabel: "served"}, Ports: []corev1.ServicePort{{Port: 80}},
		}}
		_, err := c.CoreV1().Services(one).Create(ctx, s, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return p.many(ctx, fleetServed, func(ctx context.Context, c kubernetes.Interface, i int) error {
		patch := fmt.Appendf(nil, `{"status":{"phase":"Running","podIP":"10.1.%d.%d","podIPs":[{"ip":"10.1.%[1]d.%[2]d"}],`+
			`"conditions":[{"type":"Ready","status":"True"}]}}`, i/250, i%250+1)
		_, err := c.CoreV1().Pods(one).Patch(ctx, fmt.Sprint("served-", i), types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// claims makes claims and volumes, each of which names the other.
func claims(ctx context.Context, p *plane) error {
	return p.many(ctx, fleetClaims, func(ctx context.Context, c kubernetes.Interface, i int) error {
		name, size := fmt.Sprint("claim-", i), amounts("1", "1Gi")
		storage := corev1.ResourceList{corev1.ResourceStorage: size[corev1.ResourceMemory]}
		modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			Capacity: storage, AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: one, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
		}}
		if _, err := c.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := c.CoreV1().PersistentVolumeClaims(one).Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: modes, VolumeName: name, StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: storage},
			},
		}, metav1.CreateOptions{})
		return err
	})
}

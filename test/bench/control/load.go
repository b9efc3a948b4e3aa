package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	namespace = "bench"
	node      = "node-1"
	// clients is how many write and read at once, each by a connection of its own.
	clients = 16
	// burst is how long each rate is taken over.
	burst = 10 * time.Second
	// later is when a burst of work is over.
	later = 30 * time.Second
)

// begins makes what objects of the benchmark are in: a namespace, the account of its pods, and their node, which the
// controllers would otherwise delete them for.
func (p *plane) begins(ctx context.Context) error {
	if err := p.space(ctx, metav1.ObjectMeta{Name: namespace}); err != nil {
		return err
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	_, err := p.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	return err
}

// space makes a namespace with the account of its pods.
func (p *plane) space(ctx context.Context, of metav1.ObjectMeta) error {
	if _, err := p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: of}, metav1.CreateOptions{}); err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err := p.client.CoreV1().ServiceAccounts(of.Name).Create(ctx, account, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // the controllers make one, too
		return nil
	}
	return err
}

// another is a client of a number, by a connection of its own.
func (p *plane) another(n int) (kubernetes.Interface, error) {
	config := *p.config
	config.UserAgent = fmt.Sprint("bench-", n)
	return kubernetes.NewForConfig(&config)
}

// applies is how long the apply of one Deployment takes, at the client.
func applies(ctx context.Context, _ config, p *plane) ([]figure, error) {
	before, err := p.processes.cpu()
	if err != nil {
		return nil, err
	}
	const applies = 200
	var times []float64
	for i := range applies {
		labels := map[string]string{"app": fmt.Sprint("web-", i)}
		d := appsac.Deployment(fmt.Sprint("web-", i), namespace).WithSpec(appsac.DeploymentSpec().WithReplicas(3).
			WithSelector(metaac.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(coreac.PodTemplateSpec().WithLabels(labels).WithSpec(coreac.PodSpec().WithContainers(
				coreac.Container().WithName("web").WithImage("registry.example.com/web:1").
					WithPorts(coreac.ContainerPort().WithContainerPort(80))))))
		began := time.Now()
		if _, err := p.client.AppsV1().Deployments(namespace).Apply(ctx, d, metav1.ApplyOptions{FieldManager: "bench"}); err != nil {
			return nil, fmt.Errorf("apply: %w", err)
		}
		times = append(times, time.Since(began).Seconds()*1000)
	}
	used, err := p.processes.since(before)
	if err != nil {
		return nil, err
	}
	slices.Sort(times)
	err = p.client.AppsV1().Deployments(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	return []figure{
		{"apply of a Deployment: median", "ms", times[len(times)/2]},
		{"apply of a Deployment: p99", "ms", times[len(times)*99/100]},
		{"apply of a Deployment: CPU time of one", "ms", used / applies},
	}, err
}

// rate is how often a second several clients can do something, and what one of it takes the servers.
func rate(ctx context.Context, p *plane, name string, do func(ctx context.Context, c kubernetes.Interface, i int) error) ([]figure, error) {
	before, err := p.processes.cpu()
	if err != nil {
		return nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	var counts [clients]int
	began := time.Now()
	for n := range clients {
		c, err := p.another(n)
		if err != nil {
			return nil, err
		}
		group.Go(func() error {
			for i := 0; time.Since(began) < burst; i++ {
				if err := do(ctx, c, i*clients+n); err != nil {
					return err
				}
				counts[n]++
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return rated(p, name, counts[:], began, before)
}

// rated is what clients have done since a moment, each by its count.
func rated(p *plane, name string, counts []int, began time.Time, before time.Duration) ([]figure, error) {
	took, sum := time.Since(began), 0
	for _, n := range counts {
		sum += n
	}
	used, err := p.processes.since(before)
	return []figure{
		{name + " (more is better)", "/s", float64(sum) / took.Seconds()},
		{name + ": CPU time of one", "ms", used / float64(sum)},
	}, err
}

func creates(ctx context.Context, _ config, p *plane) ([]figure, error) {
	return rate(ctx, p, "ConfigMaps created", func(ctx context.Context, c kubernetes.Interface, i int) error {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m-", i)}, Data: map[string]string{"a": "b"}}
		_, err := c.CoreV1().ConfigMaps(namespace).Create(ctx, o, metav1.CreateOptions{})
		return err
	})
}

func gets(ctx context.Context, _ config, p *plane) ([]figure, error) {
	return rate(ctx, p, "ConfigMaps read", func(ctx context.Context, c kubernetes.Interface, i int) error {
		_, err := c.CoreV1().ConfigMaps(namespace).Get(ctx, fmt.Sprint("m-", i%1000), metav1.GetOptions{})
		return err
	})
}

func podGets(ctx context.Context, c config, p *plane) ([]figure, error) {
	return rate(ctx, p, "pods read", func(ctx context.Context, k kubernetes.Interface, i int) error {
		_, err := k.CoreV1().Pods(namespace).Get(ctx, fmt.Sprint("p-", i%c.objects), metav1.GetOptions{})
		return err
	})
}

func pod(name string) *corev1.Pod {
	grace := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace, NodeName: node, Containers: []corev1.Container{{
			Name: "web", Image: "registry.example.com/web:1", Ports: []corev1.ContainerPort{{ContainerPort: 80}},
			Env: []corev1.EnvVar{{Name: "A", Value: "b"}},
		}}},
	}
}

// pods makes those that are listed and watched.
func pods(ctx context.Context, c config, p *plane) ([]figure, error) {
	before, err := p.processes.cpu()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(clients)
	for i := range c.objects {
		group.Go(func() error {
			_, err := p.client.CoreV1().Pods(namespace).Create(inner, pod(fmt.Sprint("p-", i)), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	used, err := p.processes.since(before)
	return []figure{
		{"pods created (more is better)", "/s", float64(c.objects) / took},
		{"pods created: CPU time of one", "ms", used / float64(c.objects)},
	}, err
}

// lists is how long a list of all pods takes, of the store and of what the server has at hand.
func lists(ctx context.Context, _ config, p *plane) ([]figure, error) {
	var all []figure
	for _, how := range []struct{ name, version string }{{"list of all pods", ""}, {"list of all pods, of any age", "0"}} {
		before, err := p.processes.cpu()
		if err != nil {
			return nil, err
		}
		var times []float64
		for range 5 {
			began := time.Now()
			if _, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: how.version}); err != nil {
				return nil, err
			}
			times = append(times, time.Since(began).Seconds()*1000)
		}
		slices.Sort(times)
		used, err := p.processes.since(before)
		if err != nil {
			return nil, err
		}
		all = append(all, figure{how.name, "ms", times[2]}, figure{how.name + ": CPU time of one", "ms", used / 5})
	}
	return all, nil
}

// watches is what so many clients that watch the pods cost, each a connection's stream of its own.
func watches(ctx context.Context, c config, p *plane) ([]figure, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	last, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	heard := make(chan struct{}, c.watchers)
	for range c.watchers {
		w, err := p.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: last.ResourceVersion})
		if err != nil {
			return nil, err
		}
		defer w.Stop()
		go func() {
			<-w.ResultChan()
			heard <- struct{}{}
			for range w.ResultChan() {
			}
		}()
	}
	began := time.Now()
	if _, err := p.client.CoreV1().Pods(namespace).Create(ctx, pod("last"), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	for range c.watchers {
		select {
		case <-heard:
		case <-time.After(time.Minute):
			return nil, fmt.Errorf("watch pods: not all have heard of a new one")
		}
	}
	took := time.Since(began)
	rss, err := p.processes.rss()
	if err != nil {
		return nil, err
	}
	peak, err := p.processes.peak()
	if err != nil {
		return nil, err
	}
	if err := p.holds(ctx, "watched"); err != nil {
		return nil, err
	}
	if err := wait(ctx, later); err != nil {
		return nil, err
	}
	held, err := p.processes.rss()
	return []figure{
		{"a new pod to all watchers", "ms", took.Seconds() * 1000},
		{"resident memory with all watchers", "MB", rss},
		{"resident memory with all watchers, half a minute later", "MB", held},
		{"resident memory, at most", "MB", peak},
	}, err
}

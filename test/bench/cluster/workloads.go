package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// short is how many pods of a second a Job has, and abreast how many of them run at once.
	short, abreast = 1000, 100
	image          = "berth.test/busybox:1"
	deployed       = "web"
	// workloadLimit bounds how long one of them is waited for.
	workloadLimit = 10 * time.Minute
)

// workloads are what a user sees of controllers, scheduler and one node together.
type workloads struct {
	b *bench
	n node
}

func (r workloads) measure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, workloadLimit)
	defer cancel()
	for _, do := range []struct {
		name string
		it   func(context.Context) error
	}{
		{"a Deployment, its update and its end", r.deployment}, {"pods of the client", r.itself}, {"pods of the Job", r.job},
	} {
		before, err := r.spent()
		if err != nil {
			return err
		}
		if err := do.it(ctx); err != nil {
			return err
		}
		after, err := r.spent()
		if err != nil {
			return err
		}
		r.b.figures.record(r.n, "CPU time of control plane and agent: "+do.name, "s", after-before)
	}
	return nil
}

// programs are the processes of the control plane and of the node, but for pods' own.
func (r workloads) programs() []int {
	pids := []int{r.b.control.Process.Pid}
	for _, of := range r.n.Processes() {
		pids = append(pids, of...)
	}
	return pids
}

// spent is for how many seconds the control plane and the node's own programs have run.
func (r workloads) spent() (sum float64, err error) {
	for _, pid := range r.programs() {
		one, err := processor(pid)
		if err != nil {
			return 0, err
		}
		sum += one
	}
	return sum, nil
}

// deployment is created by kubectl, rolled over to another template, and deleted.
func (r workloads) deployment(ctx context.Context) error {
	pods, stop, err := r.b.follow(ctx)
	if err != nil {
		return err
	}
	defer stop()
	began := time.Now()
	cmd := exec.CommandContext(ctx, r.b.kubectl, "--kubeconfig="+r.b.dir+"/plane/admin.kubeconfig", "create", "deployment", deployed,
		"--image="+image, "--replicas="+strconv.Itoa(r.b.many), "--", "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("create deployment: %w: %s", err, out)
	}
	if err := reach(ctx, pods, r.b.many, ready); err != nil {
		return err
	}
	r.b.figures.record(r.n, fmt.Sprintf("kubectl create deployment --replicas=%d -> all Ready", r.b.many), "s", time.Since(began).Seconds())
	all, err := r.everything()
	if err != nil {
		return err
	}
	r.b.figures.record(r.n, "memory of the agent and the control plane then", "MB", all)
	began = time.Now()
	patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"rolled":"yes"}}}}}`)
	if _, err := r.b.client.AppsV1().Deployments("default").Patch(ctx, deployed, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("roll deployment: %w", err)
	}
	if err := r.rolled(ctx); err != nil {
		return err
	}
	r.b.figures.record(r.n, fmt.Sprintf("rolling update of %d pods", r.b.many), "s", time.Since(began).Seconds())
	away := metav1.DeletePropagationForeground
	if err := r.b.client.AppsV1().Deployments("default").Delete(ctx, deployed, metav1.DeleteOptions{PropagationPolicy: &away}); err != nil {
		return fmt.Errorf("delete deployment: %w", err)
	}
	return r.empty(ctx)
}

// reach waits until so many pods are as is asked for.
func reach(ctx context.Context, from <-chan seen, count int, is func(seen) bool) error {
	have := map[string]bool{}
	for len(have) < count {
		select {
		case s, ok := <-from:
			if !ok {
				return fmt.Errorf("the watch has ended, %d of %d pods are there", len(have), count)
			}
			if is(s) {
				have[s.name] = true
			}
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods are there: %w", len(have), count, ctx.Err())
		}
	}
	return nil
}

// rolled waits until all pods are of the template of now, and no others are left.
func (r workloads) rolled(ctx context.Context) error {
	w, err := r.b.client.AppsV1().Deployments("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + deployed})
	if err != nil {
		return fmt.Errorf("watch deployment: %w", err)
	}
	defer w.Stop()
	want := int32(r.b.many)
	for range w.ResultChan() {
		d, err := r.b.client.AppsV1().Deployments("default").Get(ctx, deployed, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read deployment: %w", err)
		}
		s := d.Status
		if s.ObservedGeneration == d.Generation && s.UpdatedReplicas == want && s.AvailableReplicas == want && s.Replicas == want {
			return nil
		}
	}
	return fmt.Errorf("watch deployment: it has ended: %w", ctx.Err())
}

// empty waits until no pod is left.
func (r workloads) empty(ctx context.Context) error {
	return until(ctx, "all pods are gone", func() error {
		left, err := r.b.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%s is there", left.Items[0].Name)
		}
		return err
	})
}

// second is a pod of a second.
func second() corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []corev1.Container{{Name: "main", Image: image, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "1"}}},
	}
}

// itself is what the node needs for the pods of a Job when nobody but the client makes them, as many at once.
func (r workloads) itself(ctx context.Context) error {
	pods, stop, err := r.b.follow(ctx)
	if err != nil {
		return err
	}
	defer stop()
	began := time.Now()
	create := func(i int) error {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("second-", i)}, Spec: second()}
		p.Spec.NodeName = r.n.Name()
		_, err := r.b.client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
		return err
	}
	var group errgroup.Group
	for i := range abreast {
		group.Go(func() error { return create(i) })
	}
	next, over := abreast, map[string]bool{}
	err = reach(ctx, pods, short, func(s seen) bool {
		if s.ended && !over[s.name] && next < short {
			over[s.name] = true
			i := next
			next++
			group.Go(func() error { return create(i) })
		}
		return s.ended
	})
	if failed := group.Wait(); err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	r.b.figures.record(r.n, fmt.Sprintf("%d pods of a second, bound by the client, %d at once", short, abreast), "s", time.Since(began).Seconds())
	if err := r.b.client.CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	return r.empty(ctx)
}

// job is the same as a Job.
func (r workloads) job(ctx context.Context) error {
	jobs := r.b.client.BatchV1().Jobs("default")
	w, err := jobs.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch jobs: %w", err)
	}
	defer w.Stop()
	began := time.Now()
	o := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "seconds"}, Spec: batchv1.JobSpec{
		Completions: new(int32(short)), Parallelism: new(int32(abreast)), Template: corev1.PodTemplateSpec{Spec: second()},
	}}
	if _, err := jobs.Create(ctx, o, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create job: %w", err)
	}
	for e := range w.ResultChan() {
		if j, ok := e.Object.(*batchv1.Job); ok && j.Status.CompletionTime != nil {
			r.b.figures.record(r.n, fmt.Sprintf("a Job of %d pods of a second, %d at once", short, abreast), "s", time.Since(began).Seconds())
			return nil
		}
	}
	return fmt.Errorf("watch jobs: it has ended: %w", ctx.Err())
}

// everything is the memory of the node's programs, keepers of pods among them, and of the control plane.
func (r workloads) everything() (float64, error) {
	pids := r.programs()
	keepers, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return 0, err
	}
	for _, exe := range keepers {
		pid := filepath.Base(filepath.Dir(exe))
		group, _ := os.ReadFile("/proc/" + pid + "/cgroup") // of a process that has ended
		program, _ := os.Readlink(exe)
		if strings.Contains(string(group), cgroup) && strings.Contains(program, "helper") {
			id, err := strconv.Atoi(pid)
			if err != nil {
				return 0, err
			}
			pids = append(pids, id)
		}
	}
	m, err := resident(pids)
	return m.all, err
}

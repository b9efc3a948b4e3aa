package control

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// keep makes a ConfigMap with owners.
func (p *plane) keep(t *testing.T, namespace, name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	t.Helper()
	c, err := p.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ownedBy(c *corev1.ConfigMap, blocks bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: c.Name, UID: c.UID, BlockOwnerDeletion: &blocks}
}

func (p *plane) gone(t *testing.T, namespace string, names ...string) {
	t.Helper()
	for _, name := range names {
		until(t, name+" is gone", func() error {
			_, err := p.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is not: %w", err)
		})
	}
}

func (p *plane) end(t *testing.T, namespace, name string, policy metav1.DeletionPropagation) {
	t.Helper()
	if err := p.client.CoreV1().ConfigMaps(namespace).Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		t.Fatal(err)
	}
}

// TestGarbage deletes owners in each way that there is, while the process is killed, and asks what is left.
func TestGarbage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir)
	const ns = "default"
	// After: whatever is owned by what is gone goes, over several steps.
	a := p.keep(t, ns, "a")
	b := p.keep(t, ns, "b", ownedBy(a, true))
	p.keep(t, ns, "c", ownedBy(b, false))
	other := p.keep(t, ns, "other")
	p.keep(t, ns, "shared", ownedBy(a, true), ownedBy(other, true))
	p.end(t, ns, "a", metav1.DeletePropagationBackground)
	p.gone(t, ns, "a", "b", "c")
	until(t, "what has another owner forgets the one", func() error {
		c, err := p.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "shared", metav1.GetOptions{})
		if err == nil && (len(c.OwnerReferences) != 1 || c.OwnerReferences[0].UID != other.UID) {
			err = fmt.Errorf("its owners are %v", c.OwnerReferences)
		}
		return err
	})
	// Before: the owner is there until what blocks it is gone, and circles end.
	x := p.keep(t, ns, "x")
	y := p.keep(t, ns, "y", ownedBy(x, true))
	z := p.keep(t, ns, "z", ownedBy(y, true))
	x.OwnerReferences = []metav1.OwnerReference{ownedBy(z, true)}
	if _, err := p.client.CoreV1().ConfigMaps(ns).Update(t.Context(), x, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.end(t, ns, "x", metav1.DeletePropagationForeground)
	p.kill()
	p = start(t, dir)
	p.gone(t, ns, "x", "y", "z")
	// Not at all.
	o := p.keep(t, ns, "owner")
	var names []string
	for i := range 20 {
		names = append(names, "orphan-"+strconv.Itoa(i))
		p.keep(t, ns, names[i], ownedBy(o, true))
	}
	p.end(t, ns, "owner", metav1.DeletePropagationOrphan)
	p.gone(t, ns, "owner")
	for _, name := range names {
		c, err := p.client.CoreV1().ConfigMaps(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(c.OwnerReferences) > 0 || c.DeletionTimestamp != nil {
			t.Errorf("an orphan is %v, %v", c, err)
		}
	}
	// An owner of another namespace is none.
	stranger := p.keep(t, "kube-system", "stranger")
	p.keep(t, ns, "lost", ownedBy(stranger, true))
	p.gone(t, ns, "lost")
	until(t, "it is told why", func() error {
		all, err := p.client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=OwnerRefInvalidNamespace"})
		if err == nil && len(all.Items) == 0 {
			err = fmt.Errorf("there is no event")
		}
		return err
	})
}

// TestGarbageOfCRD has objects of a kind that comes while the collector runs own each other.
func TestGarbageOfCRD(t *testing.T) {
	t.Parallel()
	p := share(t)
	crds := p.dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := crds.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "things.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := crds.Delete(context.WithoutCancel(t.Context()), "things.example.com", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	things := p.dyn.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}).Namespace(p.ns)
	make := func(name string, owner *unstructured.Unstructured) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Thing"}}
		o.SetName(name)
		if owner != nil {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Thing", Name: owner.GetName(), UID: owner.GetUID()}})
		}
		var made *unstructured.Unstructured
		until(t, name+" is made", func() error {
			var err error
			made, err = things.Create(t.Context(), o, metav1.CreateOptions{})
			return err
		})
		return made
	}
	make("child", make("parent", nil))
	if err := things.Delete(t.Context(), "parent", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the child is gone", func() error {
		_, err := things.Get(t.Context(), "child", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is not: %w", err)
	})
}

func jobOf(name string, completions, parallelism int32, change func(*batchv1.JobSpec)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
		Completions: &completions, Parallelism: &parallelism,
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}},
		}},
	}}
	if change != nil {
		change(&j.Spec)
	}
	return j
}

func (p *plane) job(t *testing.T, j *batchv1.Job) {
	t.Helper()
	p.here(&j.Spec.Template.Spec)
	if _, err := p.client.BatchV1().Jobs(p.ns).Create(t.Context(), j, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// jobIs waits for what is asked of a job.
func (p *plane) jobIs(t *testing.T, name, what string, is func(*batchv1.Job) bool) *batchv1.Job {
	t.Helper()
	var got *batchv1.Job
	until(t, "job "+name+" is "+what, func() error {
		j, err := p.client.BatchV1().Jobs(p.ns).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !is(j) {
			err = fmt.Errorf("its status is %+v", j.Status)
		}
		got = j
		return err
	})
	return got
}

func hasEnded(kind batchv1.JobConditionType, reason string) func(*batchv1.Job) bool {
	return func(j *batchv1.Job) bool {
		for _, c := range j.Status.Conditions {
			if c.Type == kind && c.Status == corev1.ConditionTrue && (reason == "" || c.Reason == reason) {
				return true
			}
		}
		return false
	}
}

// TestJobs has jobs end in the ways that there are, and one while the process is killed.
func TestJobs(t *testing.T) {
	t.Parallel()
	p := share(t)
	h := p.hollow(t, "a")
	h.say(func(o *corev1.Pod) corev1.PodStatus {
		code, err := strconv.Atoi(o.Annotations["code"])
		if i, has := o.Annotations[batchv1.JobCompletionIndexAnnotation]; has && o.Annotations["fails"] == i {
			code, err = 1, nil
		}
		if err != nil {
			return running(o)
		}
		return exited(int32(code))(o)
	})
	indexed, one := batchv1.IndexedCompletion, int32(1)
	ends := func(code string) func(*batchv1.JobSpec) {
		return func(s *batchv1.JobSpec) { s.Template.Annotations = map[string]string{"code": code} }
	}
	p.job(t, jobOf("good", 3, 2, ends("0")))
	p.job(t, jobOf("bad", 1, 1, func(s *batchv1.JobSpec) { ends("1")(s); s.BackoffLimit = new(int32) }))
	p.job(t, jobOf("ruled", 2, 2, func(s *batchv1.JobSpec) {
		ends("42")(s)
		s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action:      batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}},
		}}}
	}))
	p.job(t, jobOf("indexes", 4, 4, func(s *batchv1.JobSpec) {
		ends("0")(s)
		s.Template.Annotations["fails"] = "2"
		s.CompletionMode, s.BackoffLimitPerIndex = &indexed, new(int32)
	}))
	p.job(t, jobOf("first", 5, 5, func(s *batchv1.JobSpec) {
		ends("0")(s)
		s.CompletionMode = &indexed
		s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: &one}}}
	}))
	p.job(t, jobOf("late", 1, 1, func(s *batchv1.JobSpec) { s.ActiveDeadlineSeconds = new(int64); *s.ActiveDeadlineSeconds = 1 }))
	p.job(t, jobOf("brief", 1, 1, func(s *batchv1.JobSpec) { ends("0")(s); s.TTLSecondsAfterFinished = new(int32) }))
	stopped := true
	p.job(t, jobOf("stopped", 1, 1, func(s *batchv1.JobSpec) { ends("0")(s); s.Suspend = &stopped }))

	if j := p.jobIs(t, "good", "complete", hasEnded(batchv1.JobComplete, batchv1.JobReasonCompletionsReached)); j.Status.Succeeded != 3 || j.Status.CompletionTime == nil {
		t.Errorf("it is %+v", j.Status)
	}
	if j := p.jobIs(t, "bad", "failed", hasEnded(batchv1.JobFailed, batchv1.JobReasonBackoffLimitExceeded)); j.Status.Failed != 1 {
		t.Errorf("it is %+v", j.Status)
	}
	p.jobIs(t, "ruled", "failed", hasEnded(batchv1.JobFailed, batchv1.JobReasonPodFailurePolicy))
	j := p.jobIs(t, "indexes", "failed", hasEnded(batchv1.JobFailed, batchv1.JobReasonFailedIndexes))
	if j.Status.CompletedIndexes != "0,1,3" || j.Status.FailedIndexes == nil || *j.Status.FailedIndexes != "2" {
		t.Errorf("it is %+v", j.Status)
	}
	p.jobIs(t, "first", "complete", hasEnded(batchv1.JobComplete, batchv1.JobReasonSuccessPolicy))
	p.jobIs(t, "late", "failed", hasEnded(batchv1.JobFailed, batchv1.JobReasonDeadlineExceeded))
	until(t, "what is brief is gone", func() error {
		_, err := p.client.BatchV1().Jobs(p.ns).Get(t.Context(), "brief", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is not: %w", err)
	})
	if j := p.jobIs(t, "stopped", "suspended", hasEnded(batchv1.JobSuspended, "")); j.Status.StartTime != nil {
		t.Errorf("it has started: %+v", j.Status)
	}
	if _, err := p.client.BatchV1().Jobs(p.ns).Patch(t.Context(), "stopped", "application/merge-patch+json", []byte(`{"spec":{"suspend":false}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	p.jobIs(t, "stopped", "complete", hasEnded(batchv1.JobComplete, ""))
}

// TestJobKilled kills the process while the pods of a job end, and counts them: each once.
func TestJobKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir)
	p.equipped(t, "default")
	h := p.hollow(t, "a")
	port := p.port(t)
	h.say(exited(0))
	p.job(t, jobOf("many", 300, 40, nil))
	for n := range 3 {
		p.jobIs(t, "many", "further", func(j *batchv1.Job) bool { return int(j.Status.Succeeded) > 40*n })
		p.kill()
		p = startAt(t, dir, port)
	}
	j := p.jobIs(t, "many", "complete", hasEnded(batchv1.JobComplete, ""))
	pods, err := p.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "job-name=many"})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 300 || j.Status.Succeeded != 300 || j.Status.Failed != 0 {
		t.Errorf("there are %d pods, and the status is %+v", len(pods.Items), j.Status)
	}
	for _, o := range pods.Items {
		if len(o.Finalizers) > 0 {
			t.Errorf("pod %s has %v", o.Name, o.Finalizers)
		}
	}
}

// TestCronJob waits for the clock to start a job, and takes it away with what started it.
func TestCronJob(t *testing.T) {
	t.Parallel()
	p := share(t)
	zone, j := "Asia/Kolkata", jobOf("", 1, 1, nil)
	p.here(&j.Spec.Template.Spec)
	crons := p.client.BatchV1().CronJobs(p.ns)
	if _, err := crons.Create(t.Context(), &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: batchv1.CronJobSpec{
		Schedule: "* * * * *", TimeZone: &zone, JobTemplate: batchv1.JobTemplateSpec{Spec: j.Spec},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "a job is started", func() error {
		c, err := crons.Get(t.Context(), "c", metav1.GetOptions{})
		if err == nil && (len(c.Status.Active) == 0 || c.Status.LastScheduleTime == nil) {
			err = fmt.Errorf("its status is %+v", c.Status)
		}
		return err
	})
	if err := crons.Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "its jobs and their pods are gone", func() error {
		jobs, err := p.client.BatchV1().Jobs(p.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		pods, err := p.client.CoreV1().Pods(p.ns).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(jobs.Items)+len(pods.Items) > 0 {
			err = fmt.Errorf("there are %d jobs and %d pods", len(jobs.Items), len(pods.Items))
		}
		return err
	})
}

// TestQuotas has what a quota limits come and go.
func TestQuotas(t *testing.T) {
	t.Parallel()
	p := share(t)
	quotas := p.client.CoreV1().ResourceQuotas(p.ns)
	if _, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
		"count/jobs.batch": resource.MustParse("2"), "configmaps": resource.MustParse("5"), "pods": resource.MustParse("3"), "requests.cpu": resource.MustParse("1"),
		"count/leases.coordination.k8s.io": resource.MustParse("1"),
	}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	uses := func(what string, want map[corev1.ResourceName]string) {
		t.Helper()
		until(t, what, func() error {
			q, err := quotas.Get(t.Context(), "q", metav1.GetOptions{})
			for name, n := range want {
				if have := q.Status.Used[name]; err == nil && have.Cmp(resource.MustParse(n)) != 0 {
					err = fmt.Errorf("it uses %v of %v", q.Status.Used, q.Status.Hard)
				}
			}
			return err
		})
	}
	uses("nothing is used", map[corev1.ResourceName]string{"count/jobs.batch": "0", "configmaps": "1", "pods": "0", "requests.cpu": "0"})
	stopped := true
	p.job(t, jobOf("a", 1, 1, func(s *batchv1.JobSpec) { s.Suspend = &stopped }))
	p.keep(t, p.ns, "m")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}},
	}}}}
	if _, err := p.client.CoreV1().Pods(p.ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	uses("all is used", map[corev1.ResourceName]string{"count/jobs.batch": "1", "configmaps": "2", "pods": "1", "requests.cpu": "500m"})
	now := int64(0)
	if err := p.client.CoreV1().Pods(p.ns).Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	p.end(t, p.ns, "m", metav1.DeletePropagationBackground)
	policy := metav1.DeletePropagationBackground
	if err := p.client.BatchV1().Jobs(p.ns).Delete(t.Context(), "a", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		t.Fatal(err)
	}
	uses("all is free again", map[corev1.ResourceName]string{"count/jobs.batch": "0", "configmaps": "1", "pods": "0", "requests.cpu": "0"})
}

// TestBudgets has a budget say how many pods may go, and roles be made of others.
func TestBudgets(t *testing.T) {
	t.Parallel()
	p := share(t)
	h := p.hollow(t, "a")
	for i := range 3 {
		o := p.template("x", "i")
		o.Name = "p" + strconv.Itoa(i)
		if _, err := p.client.CoreV1().Pods(p.ns).Create(t.Context(), &corev1.Pod{ObjectMeta: o.ObjectMeta, Spec: o.Spec}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	two := intstr.FromInt32(2)
	budgets := p.client.PolicyV1().PodDisruptionBudgets(p.ns)
	if _, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: &two, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	allows := func(n int32) {
		t.Helper()
		until(t, fmt.Sprintf("%d may go", n), func() error {
			b, err := budgets.Get(t.Context(), "b", metav1.GetOptions{})
			if err == nil && (b.Status.DisruptionsAllowed != n || b.Status.ObservedGeneration != b.Generation || len(b.Status.DisruptedPods) > 0) {
				err = fmt.Errorf("it says %+v", b.Status)
			}
			return err
		})
	}
	allows(1)
	evict := func(name string) error {
		return p.client.PolicyV1().Evictions(p.ns).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name}})
	}
	if err := evict("p0"); err != nil {
		t.Fatal(err)
	}
	allows(0)
	if err := evict("p1"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("a second one goes: %v", err)
	}
	h.say(unready)
	until(t, "none is healthy", func() error {
		b, err := budgets.Get(t.Context(), "b", metav1.GetOptions{})
		if err == nil && b.Status.CurrentHealthy != 0 {
			err = fmt.Errorf("it says %+v", b.Status)
		}
		return err
	})
	if _, err := p.client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: p.named("more"), Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"budgets.example.com"}, Resources: []string{"things"}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.client.RbacV1().ClusterRoles().Delete(context.WithoutCancel(t.Context()), p.named("more"), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"view", "edit", "admin"} {
		until(t, name+" has it, too", func() error {
			r, err := p.client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, rule := range r.Rules {
				if len(rule.APIGroups) == 1 && rule.APIGroups[0] == "budgets.example.com" {
					return nil
				}
			}
			return fmt.Errorf("it has %d rules", len(r.Rules))
		})
	}
}

// TestJobsSpeed measures what many objects take, where BERTH_SPEED asks for it: a namespace of 10,000 that is deleted,
// and a job of 1,000 pods.
func TestJobsSpeed(t *testing.T) {
	if os.Getenv("BERTH_SPEED") == "" {
		t.Skip("BERTH_SPEED is not set")
	}
	p := start(t, t.TempDir())
	p.equipped(t, "default")
	core := p.client.CoreV1()
	if _, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "full"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	owner := p.keep(t, "full", "owner")
	var group sync.WaitGroup
	for w := range 16 {
		group.Go(func() {
			for i := w; i < 10000; i += 16 {
				c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c" + strconv.Itoa(i)}}
				if i%2 == 0 {
					c.OwnerReferences = []metav1.OwnerReference{ownedBy(owner, true)}
				}
				if _, err := core.ConfigMaps("full").Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	began := time.Now()
	if err := core.Namespaces().Delete(t.Context(), "full", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the namespace is gone", func() error {
		_, err := core.Namespaces().Get(t.Context(), "full", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is not: %w", err)
	})
	t.Logf("a namespace of 10,000 objects took %s", time.Since(began))
	h := p.hollow(t, "a")
	h.say(exited(0))
	began = time.Now()
	p.job(t, jobOf("many", 1000, 1000, nil))
	p.jobIs(t, "many", "complete", hasEnded(batchv1.JobComplete, ""))
	t.Logf("a job of 1,000 pods that end at once took %s", time.Since(began))
}

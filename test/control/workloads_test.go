package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// labelled is a selector of the pods of one app, and template a template of theirs.
func labelled(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func template(app, image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

// podsOf are the pods of an app that are not about to go.
func (p *plane) podsOf(t *testing.T, app string) []corev1.Pod {
	t.Helper()
	all, err := p.client.CoreV1().Pods(p.ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all.Items, func(o corev1.Pod) bool { return o.DeletionTimestamp != nil })
}

// patch changes an object of a group's resource by a merge patch.
func (p *plane) patch(t *testing.T, resource, name, patch string) {
	t.Helper()
	path := "/apis/apps/v1/namespaces/" + p.ns + "/" + resource + "/" + name
	if resource == "replicationcontrollers" || resource == "pods" {
		path = "/api/v1/namespaces/" + p.ns + "/" + resource + "/" + name
	}
	if err := p.client.AppsV1().RESTClient().Patch(types.MergePatchType).AbsPath(path).Body([]byte(patch)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, p *plane, name string) {
	t.Helper()
	if err := p.client.CoreV1().Pods(p.ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// deployed waits until all pods of a deployment are of its template and available.
func (p *plane) deployed(t *testing.T, name string) *appsv1.Deployment {
	t.Helper()
	var d *appsv1.Deployment
	until(t, "deployment "+name+" is complete", func() (err error) {
		d, err = p.client.AppsV1().Deployments(p.ns).Get(t.Context(), name, metav1.GetOptions{})
		if s := d.Status; err == nil && (s.ObservedGeneration != d.Generation || s.Replicas != *d.Spec.Replicas || s.UpdatedReplicas != s.Replicas || s.AvailableReplicas != s.Replicas) {
			err = fmt.Errorf("its status is %+v", s)
		}
		return err
	})
	return d
}

// TestReplicaSet keeps pods: makes them, makes others for those that go, adopts, releases, and says so.
func TestReplicaSet(t *testing.T) {
	t.Parallel()
	p := share(t)
	p.hollow(t, "a", "b")
	sets := p.client.AppsV1().ReplicaSets(p.ns)
	adopted := p.template("rs", "i")
	if _, err := p.client.CoreV1().Pods(p.ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "orphan", Labels: adopted.Labels}, Spec: adopted.Spec,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Where the set hears of the pod late, it has one too many, and ends one that is not running.
	until(t, "the orphan runs", func() error {
		o, err := p.client.CoreV1().Pods(p.ns).Get(t.Context(), "orphan", metav1.GetOptions{})
		if err == nil && o.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("it is %q", o.Status.Phase)
		}
		return err
	})
	made, err := sets.Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "rs"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32(3)), Selector: labelled("rs"), Template: p.template("rs", "i")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	available := func(n int32) {
		t.Helper()
		until(t, fmt.Sprintf("%d pods are available", n), func() error {
			s, err := sets.Get(t.Context(), "rs", metav1.GetOptions{})
			if err == nil && (s.Status.AvailableReplicas != n || s.Status.Replicas != n || s.Status.ObservedGeneration != s.Generation) {
				err = fmt.Errorf("its status is %+v", s.Status)
			}
			return err
		})
	}
	available(3)
	all := p.podsOf(t, "rs")
	if !slices.ContainsFunc(all, func(o corev1.Pod) bool { return o.Name == "orphan" && metav1.IsControlledBy(&o, made) }) || len(all) != 3 {
		t.Errorf("the orphan is not adopted: %v", all)
	}
	// A pod that is another's from now on is released, and replaced.
	p.patch(t, "pods", "orphan", `{"metadata":{"labels":{"app":"free"}}}`)
	until(t, "the pod is released", func() error {
		o, err := p.client.CoreV1().Pods(p.ns).Get(t.Context(), "orphan", metav1.GetOptions{})
		if err == nil && metav1.GetControllerOf(o) != nil {
			err = errors.New("it has an owner")
		}
		return err
	})
	// The set says that it has three until it has heard of that.
	until(t, "another pod is ready in its place", func() error {
		all = p.podsOf(t, "rs")
		if n := len(all); n != 3 || slices.ContainsFunc(all, func(o corev1.Pod) bool { return !isReady(&o) }) {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	available(3)
	// The cheapest one goes first. That there is one too many, the controller hears by the same watch as what it costs:
	// of a smaller set it could hear before that.
	p.patch(t, "pods", all[1].Name, `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-5"}}}`)
	p.patch(t, "pods", "orphan", `{"metadata":{"labels":{"app":"rs"}}}`)
	until(t, "the cheapest one goes", func() error {
		_, err := p.client.CoreV1().Pods(p.ns).Get(t.Context(), all[1].Name, metav1.GetOptions{})
		switch {
		case err == nil:
			return errors.New("it is there")
		case apierrors.IsNotFound(err):
			return nil
		}
		return err
	})
	available(3)
	p.patch(t, "replicasets", "rs", `{"spec":{"replicas":2}}`)
	available(2)
	remove(t, p, p.podsOf(t, "rs")[0].Name)
	available(2)
	// What a quota refuses is said, until it is over.
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")},
	}}
	if _, err := p.client.CoreV1().ResourceQuotas(p.ns).Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the quota counts", func() error {
		more := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: p.template("more", "i").Spec}
		_, err := p.client.CoreV1().Pods(p.ns).Create(t.Context(), more, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case err == nil:
			return errors.New("another pod is taken")
		case strings.Contains(err.Error(), "exceeded quota"):
			return nil
		}
		return err
	})
	p.patch(t, "replicasets", "rs", `{"spec":{"replicas":4}}`)
	failing := func(want bool) {
		t.Helper()
		until(t, fmt.Sprintf("a failure is said: %v", want), func() error {
			s, err := sets.Get(t.Context(), "rs", metav1.GetOptions{})
			is := err == nil && slices.ContainsFunc(s.Status.Conditions, func(c appsv1.ReplicaSetCondition) bool {
				return c.Type == appsv1.ReplicaSetReplicaFailure && c.Reason == "FailedCreate" && strings.Contains(c.Message, "exceeded quota")
			})
			if err == nil && is != want {
				err = fmt.Errorf("its conditions are %v", s.Status.Conditions)
			}
			return err
		})
	}
	failing(true)
	p.patch(t, "replicasets", "rs", `{"spec":{"replicas":2}}`)
	failing(false)
}

// TestReplicationController keeps pods, and its own kind's status.
func TestReplicationController(t *testing.T) {
	t.Parallel()
	p := share(t)
	p.hollow(t, "a")
	controllers := p.client.CoreV1().ReplicationControllers(p.ns)
	if _, err := controllers.Create(t.Context(), &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "rc"}, Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(2)), Template: new(p.template("rc", "i"))},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int32{2, 4, 1} {
		p.patch(t, "replicationcontrollers", "rc", fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
		until(t, fmt.Sprintf("%d pods are available", n), func() error {
			s, err := controllers.Get(t.Context(), "rc", metav1.GetOptions{})
			if err == nil && (s.Status.AvailableReplicas != n || s.Status.Replicas != n || s.Status.FullyLabeledReplicas != n || s.Status.ObservedGeneration != s.Generation) {
				err = fmt.Errorf("its status is %+v", s.Status)
			}
			return err
		})
	}
}

// TestDeploymentRollout rolls out, scales in the midst of it, pauses, goes back, gives up, and recreates, while the
// process is killed now and then.
func TestDeploymentRollout(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir)
	port := p.port(t)
	p.hollow(t, "a", "b")
	p.equipped(t, "default")
	deployments := p.client.AppsV1().Deployments("default")
	if _, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Annotations: map[string]string{"example.com/a": "b"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(10)), Selector: labelled("d"), Template: template("d", "one"), RevisionHistoryLimit: new(int32(1)),
			Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(3)), MaxUnavailable: new(intstr.FromInt32(2))}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d := p.deployed(t, "d")
	if d.Annotations["deployment.kubernetes.io/revision"] != "1" {
		t.Errorf("its annotations are %v", d.Annotations)
	}
	image := func(name string) string {
		return `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"` + name + `"}]}}}}`
	}
	// Bounds hold all the time, whoever is killed.
	p.patch(t, "deployments", "d", image("two"))
	for range 2 {
		p.kill()
		p = startAt(t, dir, port)
		if n := len(p.podsOf(t, "d")); n < 8 || n > 13 {
			t.Errorf("there are %d pods", n)
		}
	}
	d = p.deployed(t, "d")
	if d.Annotations["deployment.kubernetes.io/revision"] != "2" {
		t.Errorf("its annotations are %v", d.Annotations)
	}
	reason := func(kind appsv1.DeploymentConditionType, want string) {
		t.Helper()
		until(t, string(kind)+" is "+want, func() error {
			d, err := p.client.AppsV1().Deployments("default").Get(t.Context(), "d", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range d.Status.Conditions {
				if c.Type == kind && c.Reason == want {
					return nil
				}
			}
			return fmt.Errorf("its conditions are %v", d.Status.Conditions)
		})
	}
	reason(appsv1.DeploymentProgressing, "NewReplicaSetAvailable")
	reason(appsv1.DeploymentAvailable, "MinimumReplicasAvailable")
	// Paused, the template is one thing and the pods another.
	p.patch(t, "deployments", "d", `{"spec":{"paused":true,"replicas":12}}`)
	reason(appsv1.DeploymentProgressing, "DeploymentPaused")
	p.patch(t, "deployments", "d", image("three"))
	until(t, "it is scaled though it is paused", func() error {
		if n := len(p.podsOf(t, "d")); n != 12 {
			return fmt.Errorf("there are %d pods", n)
		}
		return nil
	})
	for _, o := range p.podsOf(t, "d") {
		if o.Spec.Containers[0].Image != "two" {
			t.Errorf("%s is of %s", o.Name, o.Spec.Containers[0].Image)
		}
	}
	p.patch(t, "deployments", "d", `{"spec":{"paused":false}}`)
	p.deployed(t, "d")
	sets := func() []appsv1.ReplicaSet {
		all, err := p.client.AppsV1().ReplicaSets("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return all.Items
	}
	until(t, "one set is kept of those before", func() error {
		if all := sets(); len(all) != 2 {
			return fmt.Errorf("there are %d", len(all))
		}
		return nil
	})
	for _, s := range sets() {
		if s.Annotations["example.com/a"] != "b" || s.Spec.Selector.MatchLabels["pod-template-hash"] == "" || s.Name != "d-"+s.Labels["pod-template-hash"] {
			t.Errorf("a set is %v", s.ObjectMeta)
		}
	}
	// Back to what was before, which is another revision of the same set.
	p.patch(t, "deployments", "d", image("two"))
	d = p.deployed(t, "d")
	if d.Annotations["deployment.kubernetes.io/revision"] != "4" || len(sets()) != 2 {
		t.Errorf("its annotations are %v, of %d sets", d.Annotations, len(sets()))
	}
	p.patch(t, "deployments", "d", `{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null},"template":{"spec":{"containers":[{"name":"c","image":"four"}]}}}}`)
	p.deployed(t, "d")
	for _, o := range p.podsOf(t, "d") {
		if o.Spec.Containers[0].Image != "four" {
			t.Errorf("%s is of %s", o.Name, o.Spec.Containers[0].Image)
		}
	}
}

// TestDeploymentDeadline has a rollout whose pods are never ready give up, with what was there before still there, and
// scales it in the midst.
func TestDeploymentDeadline(t *testing.T) {
	t.Parallel()
	p := share(t)
	h := p.hollow(t, "a")
	h.say(func(o *corev1.Pod) corev1.PodStatus {
		return started(o, o.Spec.Containers[0].Image != "broken")
	})
	if _, err := p.client.AppsV1().Deployments(p.ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(10)), Selector: labelled("d"), Template: p.template("d", "good"), ProgressDeadlineSeconds: new(int32(3)),
			Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(3)), MaxUnavailable: new(intstr.FromInt32(2))}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.deployed(t, "d")
	p.patch(t, "deployments", "d", `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"broken"}]}}}}`)
	until(t, "the rollout gives up", func() error {
		d, err := p.client.AppsV1().Deployments(p.ns).Get(t.Context(), "d", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && c.Reason == "ProgressDeadlineExceeded" {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", d.Status.Conditions)
	})
	count := func(image string) (n int) {
		for _, o := range p.podsOf(t, "d") {
			if o.Spec.Containers[0].Image == image {
				n++
			}
		}
		return n
	}
	are := func(good, broken int) {
		t.Helper()
		until(t, fmt.Sprintf("there are %d and %d pods", good, broken), func() error {
			if g, b := count("good"), count("broken"); g != good || b != broken {
				return fmt.Errorf("there are %d and %d", g, b)
			}
			return nil
		})
	}
	are(8, 5)
	// 20 of 10 more, in proportion: of 33 pods at most 20.3 and 12.7.
	p.patch(t, "deployments", "d", `{"spec":{"replicas":30}}`)
	are(20, 13)
}

// TestDeploymentWrites counts what a deployment of a hundred pods, and its rolling update, cost.
func TestDeploymentWrites(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir()) // its own: it counts all requests
	p.hollow(t, "a", "b")
	p.equipped(t, p.ns)
	began := time.Now()
	if _, err := p.client.AppsV1().Deployments(p.ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(100)), Selector: labelled("d"), Template: p.template("d", "one")},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.deployed(t, "d")
	made := time.Since(began)
	began = time.Now()
	p.patch(t, "deployments", "d", `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"two"}]}}}}`)
	d := p.deployed(t, "d")
	rolled := time.Since(began)
	all, err := p.client.AppsV1().ReplicaSets(p.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(d.Status)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("made within %s, rolled out within %s; %s", made, rolled, text)
	metrics, err := p.client.AppsV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(metrics)) {
		if strings.HasPrefix(line, "apiserver_request_total") && (strings.Contains(line, `resource="deployments"`) || strings.Contains(line, `resource="replicasets"`)) {
			t.Log(strings.TrimSpace(line))
		}
	}
	if len(all.Items) != 2 {
		t.Errorf("there are %d sets", len(all.Items))
	}
}

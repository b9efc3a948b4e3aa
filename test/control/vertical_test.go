package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	vpav1 "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/apis/autoscaling.k8s.io/v1"
)

// verticalKinds are the custom resources of the Vertical Pod Autoscaler, as its project publishes them.
func verticalKinds(t *testing.T) []byte {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/autoscaler/vertical-pod-autoscaler").Output()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "deploy", "vpa-v1-crd-gen.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const verticals = "/apis/autoscaling.k8s.io/v1/namespaces/default/verticalpodautoscalers"

// TestVerticalAutoscaler has the pods of a Deployment resized in place to what they use, as their node tells, from the
// moment that the custom resources are there; and another autoscaler of the same pods' kind only recommend.
func TestVerticalAutoscaler(t *testing.T) {
	t.Parallel()
	p := startAt(t, t.TempDir(), "0",
		"--controllers=vertical-pod-autoscaler-controller,serviceaccount-controller,root-ca-certificate-publisher-controller")
	host, port := busy(t, "p-0", "p-1", "q-0", "q-1")
	node, err := p.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	if _, err := p.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.equipped(t, "default")
	p.twoPods(t, "p")
	p.twoPods(t, "q")
	for doc := range strings.SplitSeq(string(verticalKinds(t)), "\n---\n") {
		if strings.TrimSpace(strings.Trim(doc, "-\n")) == "" {
			continue
		}
		if err := p.client.Discovery().RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
			SetHeader("Content-Type", "application/yaml").Body([]byte(doc)).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]vpav1.UpdateMode{"p": vpav1.UpdateModeInPlaceOrRecreate, "q": vpav1.UpdateModeOff} {
		body := fmt.Appendf(nil, `{"apiVersion":"autoscaling.k8s.io/v1","kind":"VerticalPodAutoscaler","metadata":{"name":%q},
			"spec":{"targetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":%q},"updatePolicy":{"updateMode":%q},
			"resourcePolicy":{"containerPolicies":[{"containerName":"*","maxAllowed":{"memory":"300Mi"}}]}}}`, name, name, mode)
		until(t, "the autoscaler "+name+" is taken", func() error {
			return p.client.Discovery().RESTClient().Post().AbsPath(verticals).SetHeader("Content-Type", "application/json").Body(body).
				Do(t.Context()).Error()
		})
	}
	for _, name := range []string{"p", "q"} {
		until(t, "there is a recommendation for "+name, func() error {
			r, err := p.recommended(t, name)
			if err == nil && (r.Target.Cpu().Cmp(resource.MustParse("100m")) <= 0 || r.Target.Memory().Cmp(resource.MustParse("300Mi")) > 0) {
				t.Errorf("%s is recommended %v", name, r.Target)
			}
			return err
		})
	}
	// One of two is resized at a time, the other one a minute later.
	until(t, "a pod of p is resized", func() error {
		asked, err := p.asked(t, "p")
		if err == nil && max(asked[0].Cmp(resource.MustParse("100m")), asked[1].Cmp(resource.MustParse("100m"))) <= 0 {
			err = fmt.Errorf("they ask for %v", asked)
		}
		return err
	})
	if asked, err := p.asked(t, "q"); err != nil || asked[0].String() != "100m" || asked[1].String() != "100m" {
		t.Errorf("pods that are only looked at ask for %v (%v)", asked, err)
	}
	until(t, "an event says so", func() error {
		all, err := p.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=InPlaceResizedByVPA"})
		if err == nil && len(all.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	until(t, "what was seen is kept", func() error {
		body, err := p.client.Discovery().RESTClient().Get().AbsPath("/apis/autoscaling.k8s.io/v1/namespaces/default/verticalpodautoscalercheckpoints").
			DoRaw(t.Context())
		var all vpav1.VerticalPodAutoscalerCheckpointList
		if err = errors.Join(err, json.Unmarshal(body, &all)); err == nil && len(all.Items) < 2 {
			err = fmt.Errorf("there are %d checkpoints", len(all.Items))
		}
		return err
	})
}

// asked is the CPU time that the two pods of a name ask for.
func (p *plane) asked(t *testing.T, name string) (asked [2]resource.Quantity, err error) {
	for i := range asked {
		pod, err := p.client.CoreV1().Pods("default").Get(t.Context(), fmt.Sprint(name, "-", i), metav1.GetOptions{})
		if err != nil {
			return asked, err
		}
		asked[i] = *pod.Spec.Containers[0].Resources.Requests.Cpu()
	}
	return asked, nil
}

// recommended is what an autoscaler recommends for its one container.
func (p *plane) recommended(t *testing.T, name string) (*vpav1.RecommendedContainerResources, error) {
	body, err := p.client.Discovery().RESTClient().Get().AbsPath(verticals, name).DoRaw(t.Context())
	if err != nil {
		return nil, err
	}
	var v vpav1.VerticalPodAutoscaler
	if err := json.Unmarshal(body, &v); err != nil {
		return nil, err
	}
	if v.Status.Recommendation == nil || len(v.Status.Recommendation.ContainerRecommendations) != 1 {
		return nil, fmt.Errorf("its status is %+v", v.Status)
	}
	return &v.Status.Recommendation.ContainerRecommendations[0], nil
}

// twoPods makes a Deployment with two pods that run, without a controller that would make others.
func (p *plane) twoPods(t *testing.T, name string) {
	app := map[string]string{"app": name}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: app},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		}}}},
	}
	d, err := p.client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: app}, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rs, err := p.client.AppsV1().ReplicaSets("default").Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{owner("apps/v1", "Deployment", name, d.UID)}},
		Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: app}, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	began := metav1.NewTime(time.Now().Add(-24 * time.Hour)) // one that is new is left alone
	for i := range 2 {
		pod, err := p.client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint(name, "-", i), Labels: app, OwnerReferences: []metav1.OwnerReference{owner("apps/v1", "ReplicaSet", name, rs.UID)},
		}, Spec: *template.Spec.DeepCopy()}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &began
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: began}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: began}},
		}}
		if _, err := p.client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func owner(version, kind, name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: version, Kind: kind, Name: name, UID: uid, Controller: new(true)}
}

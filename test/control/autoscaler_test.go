package control

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// busy is a kubelet that tells of pods which use a processor by a fifth, ever since they began.
func busy(t *testing.T, pods ...string) (host string, port int32) {
	t.Helper()
	began := time.Now().Add(-10 * time.Minute)
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics/resource" {
			http.NotFound(w, r)
			return
		}
		now := time.Now()
		var s strings.Builder
		put := func(name, labels string, v float64) {
			fmt.Fprintf(&s, "%s%s %f %d\n", name, labels, v, now.UnixMilli())
		}
		used := now.Sub(began).Seconds() / 5
		put("node_cpu_usage_seconds_total", "", used*float64(len(pods)))
		put("node_memory_working_set_bytes", "", 1<<30)
		for _, p := range pods {
			put("container_cpu_usage_seconds_total", `{container="c",namespace="default",pod="`+p+`"}`, used)
		}
		for _, p := range pods {
			put("container_memory_working_set_bytes", `{container="c",namespace="default",pod="`+p+`"}`, 1<<20)
		}
		fmt.Fprint(w, s.String())
	}))
	t.Cleanup(kubelet.Close)
	u, err := url.Parse(kubelet.URL)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(u.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return u.Hostname(), int32(n)
}

// comes waits until a watch tells of an object that is as asked for.
func comes(t *testing.T, w watch.Interface, what string, is func(runtime.Object) error) {
	t.Helper()
	err := errors.New("the watch has told of none")
	for late := time.After(patience); err != nil; {
		select {
		case e, ok := <-w.ResultChan():
			if !ok || e.Type == watch.Error {
				t.Fatalf("%s: the watch has ended: %v", what, e.Object)
			}
			err = is(e.Object)
		case <-late:
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		}
	}
}

// TestAutoscaler has a Deployment scaled by what its pods use, as their node tells: as fast as it may.
func TestAutoscaler(t *testing.T) {
	t.Parallel()
	p := startAt(t, t.TempDir(), "0", "--controllers=horizontal-pod-autoscaler-controller,serviceaccount-controller,root-ca-certificate-publisher-controller")
	host, port := busy(t, "p-0", "p-1")
	node, err := p.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	if _, err := p.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	app := map[string]string{"app": "a"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: app},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
		}}}},
	}
	if _, err := p.client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: app}, Template: template},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.equipped(t, "default")
	began := metav1.NewTime(time.Now().Add(-10 * time.Minute))
	for i := range 2 {
		pod, err := p.client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p-", i), Labels: app}, Spec: *template.Spec.DeepCopy(),
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &began
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: began}}
		if _, err := p.client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	scalers := p.client.AutoscalingV2().HorizontalPodAutoscalers("default")
	h := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "h"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"}, MaxReplicas: 10,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name:   corev1.ResourceCPU,
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(50))},
			}}},
		},
	}
	// Eight are asked for, and it may double: to four, and some seconds later to eight, of which watches tell each.
	deployments, err := p.client.AppsV1().Deployments("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer deployments.Stop()
	status, err := scalers.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer status.Stop()
	if _, err := scalers.Create(t.Context(), h, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	comes(t, deployments, "the deployment is scaled", func(o runtime.Object) error {
		d, is := o.(*appsv1.Deployment)
		if !is || *d.Spec.Replicas == 2 {
			return fmt.Errorf("it is %v", o)
		}
		if *d.Spec.Replicas != 4 {
			t.Errorf("it is scaled to %d", *d.Spec.Replicas)
		}
		return nil
	})
	comes(t, status, "the autoscaler says so", func(o runtime.Object) error {
		h, is := o.(*autoscalingv2.HorizontalPodAutoscaler)
		if !is {
			return fmt.Errorf("it is %v", o)
		}
		says := map[autoscalingv2.HorizontalPodAutoscalerConditionType]string{}
		for _, c := range h.Status.Conditions {
			says[c.Type] = string(c.Status) + " " + c.Reason
		}
		m := h.Status.CurrentMetrics
		if says[autoscalingv2.ScalingLimited] != "True ScaleUpLimit" || says[autoscalingv2.ScalingActive] != "True ValidMetricFound" ||
			says[autoscalingv2.AbleToScale] != "True SucceededRescale" || h.Status.DesiredReplicas != 4 || h.Status.LastScaleTime == nil || len(m) != 1 {
			return fmt.Errorf("its status is %v", h.Status)
		}
		if u := *m[0].Resource.Current.AverageUtilization; u < 150 || u > 250 {
			t.Errorf("it has seen %d percent", u)
		}
		return nil
	})
	until(t, "an event says so", func() error {
		all, err := p.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=SuccessfulRescale"})
		if err == nil && len(all.Items) == 0 {
			err = fmt.Errorf("there is none")
		}
		return err
	})
	p.stop(t)
}

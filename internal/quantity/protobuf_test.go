package quantity

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// message is what Kubernetes' types are written by.
type message interface{ Marshal() ([]byte, error) }

// costlier has a quantity of a message become one that takes for ever: in the message it is a text like any other.
func costlier(t *testing.T, o message) []byte {
	t.Helper()
	data, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for i := 0; i+4 <= len(data); i++ {
		if string(data[i:i+4]) == "7779" {
			copy(data[i:], "1e99")
			found++
		}
	}
	if found == 0 {
		t.Fatal("there is no such number in it")
	}
	return data
}

// TestCheckProtobuf has quantities in messages be found wherever they are, and what is none be left alone.
func TestCheckProtobuf(t *testing.T) {
	long := resource.MustParse("777977797779")
	list := corev1.ResourceList{"cpu": long}
	container := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: list}}
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, container}}
	pod := &corev1.Pod{Spec: spec}
	for name, o := range map[string]message{
		"a pod": pod, "a list": &corev1.PodList{Items: []corev1.Pod{{}, *pod}}, "a template": &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: spec}}},
		"a volume":      &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &long}}}}}},
		"a quota":       &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: list}},
		"a device":      &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Devices: []resourcev1.Device{{Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"x": {Value: long}}}}}},
		"an autoscaler": &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{Metrics: []autoscalingv2.MetricSpec{{Object: &autoscalingv2.ObjectMetricSource{Target: autoscalingv2.MetricTarget{Value: &long}}}}}},
	} {
		data := costlier(t, o)
		if found := CheckProtobuf(data, o); len(found) != 1 {
			t.Errorf("%s: %v", name, found)
		}
		for i := range data {
			CheckProtobuf(data[:i], o) // whatever is cut off
		}
	}
	none := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "1e99999999"}, Data: map[string]string{"a": "1e99999999"}}
	data, err := none.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if found := CheckProtobuf(data, none); len(found) > 0 {
		t.Errorf("a text is taken for a quantity: %v", found)
	}
}

func FuzzCheckProtobuf(f *testing.F) {
	f.Add([]byte("\x12\x041e999999"))
	f.Fuzz(func(_ *testing.T, data []byte) { CheckProtobuf(append([]byte("1e999"), data...), &corev1.Pod{}) })
}

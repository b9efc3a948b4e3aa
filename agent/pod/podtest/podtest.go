// Package podtest makes pods for tests.
package podtest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// New is a pod as the source hands it out.
func New(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid")},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSDefault,
			TerminationGracePeriodSeconds: new(int64(30)),
			Containers:                    []corev1.Container{Container("main")},
		},
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

// Container is one with an image that is there.
func Container(name string) corev1.Container {
	return corev1.Container{
		Name: name, Image: "app:1", ImagePullPolicy: corev1.PullIfNotPresent,
		TerminationMessagePath: corev1.TerminationMessagePathDefault, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}
}

// Policy is that of restarts.
func Policy(p corev1.RestartPolicy) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.RestartPolicy = p }
}

// WithUID is a UID other than the one by the name.
func WithUID(uid string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.UID = types.UID(uid) }
}

// Containers are those of the pod, in place of its one.
func Containers(names ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers = nil
		for _, n := range names {
			pod.Spec.Containers = append(pod.Spec.Containers, Container(n))
		}
	}
}

// Inits are init containers; a name with a star is a sidecar.
func Inits(names ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for _, n := range names {
			name, sidecar := strings.CutSuffix(n, "*")
			c := Container(name)
			if sidecar {
				c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			}
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		}
	}
}

// Hook runs a command.
func Hook(command ...string) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: command}}
}

// Claiming is a pod of that priority with those requests, of QoS class Guaranteed when they are limits too.
func Claiming(name string, prio int32, cpu, memory string, guaranteed bool) *corev1.Pod {
	return New(name, func(p *corev1.Pod) {
		p.Spec.Priority = &prio
		if cpu == "" {
			return
		}
		r := &p.Spec.Containers[0].Resources
		r.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
		if guaranteed {
			r.Limits = r.Requests
		}
	})
}

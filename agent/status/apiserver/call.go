package apiserver

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
)

// calls are made without a lock.
type calls struct{ w *Writer }

// do calls the server. Of what is read it returns nil when there is none.
func (x calls) do(ctx context.Context, a *act) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, x.w.cfg.Timeout)
	defer cancel()
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	var got corev1.Pod
	var err error
	switch a.verb {
	case read:
		return x.look(ctx, a)
	case patch:
		var data []byte
		if data, err = body(a.has, &a.status); err != nil {
			return nil, err
		}
		err = x.w.cfg.Client.Patch(ctx, pods, a.key, types.StrategicMergePatchType, data, &got, "status")
		if err == nil && got.UID != a.has.uid {
			err = fmt.Errorf("the answer is of a pod with UID %q", got.UID)
		}
	case remove:
		err = x.w.cfg.Client.Delete(ctx, pods, a.key, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &a.has.uid},
		})
	case create:
		err = x.w.cfg.Client.Create(ctx, pods, a.pod, &got)
	case nothing, waits:
	}
	x.w.cfg.Observer.StatusWrite(string(a.verb), err)
	return &got, err
}

// look reads a pod. Who gets one by its name is told that it may not when the pod is gone, since then it is none of the
// node; who asks for those of the node is told that there is none.
func (x calls) look(ctx context.Context, a *act) (*corev1.Pod, error) {
	var list corev1.PodList
	only := fields.Set{"metadata.name": a.key.Name, "spec.nodeName": x.w.cfg.Node}.AsSelector().String()
	opts := metav1.ListOptions{FieldSelector: only}
	err := x.w.cfg.Client.List(ctx, corev1.SchemeGroupVersion.WithResource("pods"), a.key.Namespace, opts, &list)
	if err == nil && list.ResourceVersion == "" { // any JSON is an empty list, and in that there would be no pod
		err = errors.New("the list of the server has no version")
	}
	if err != nil || len(list.Items) == 0 {
		return nil, err
	}
	if is := keyOf(&list.Items[0]); is != a.key {
		return nil, fmt.Errorf("asked for pod %s, the server answers with %s", a.key, is)
	}
	return &list.Items[0], nil
}

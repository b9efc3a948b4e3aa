package pod

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/credential"
)

// pullWithCredentials shows the registry what there is for the image, one after the other, until it is content. When there is
// nothing, the image may be public.
func (w *worker) pullWithCredentials(ctx context.Context, pod *corev1.Pod, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	auths := w.pullSecrets(pod, r.GetImage().GetImage())
	if w.cfg.Credentials != nil {
		more, err := w.cfg.Credentials.For(ctx, r.GetImage().GetImage())
		if err != nil {
			return nil, fmt.Errorf("get credentials: %w", err)
		}
		auths = append(auths, more...)
	}
	if len(auths) == 0 {
		return w.cfg.Runtime.PullImage(ctx, r)
	}
	var errs []error
	for _, auth := range auths {
		r.Auth = auth
		answer, err := w.cfg.Runtime.PullImage(ctx, r)
		if err == nil || ctx.Err() != nil {
			return answer, err
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// pullSecrets are the credentials of the pod's own secrets. One that is missing is told, and is no reason not to try.
func (w *worker) pullSecrets(pod *corev1.Pod, image string) []*runtimeapi.AuthConfig {
	var found []*corev1.Secret
	for _, ref := range pod.Spec.ImagePullSecrets {
		s, err := w.cfg.Objects.Secret(pod.Namespace, ref.Name)
		if err != nil {
			w.event(pod, corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
				"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", ref.Name)
			continue
		}
		found = append(found, s)
	}
	if len(found) == 0 {
		return nil
	}
	auths, err := credential.FromSecrets(image, found)
	if err != nil {
		w.event(pod, corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret", "%v", err)
	}
	return auths
}

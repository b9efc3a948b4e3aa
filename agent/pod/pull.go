package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/credential"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/pulled"
)

// puller has the images of containers be there.
type puller struct{ node *node }

// mayUse says whether a pod may use an image that is on the machine.
func (p puller) mayUse(ctx context.Context, pod *corev1.Pod, image *runtimeapi.ImageSpec, id string) (bool, error) {
	return p.node.cfg.Images.Pulled.May(ctx, imageOf(image), id, func() (out []pulled.Secret) {
		for _, o := range p.pullSecrets(pod, image.GetImage()) {
			out = append(out, *shownBy(&o))
		}
		return out
	})
}

// ImagesNamed tells the pods that these names, complete ones, have an image now, whoever has brought it.
func (m *Manager) ImagesNamed(names []string) {
	at := time.Now()
	for _, w := range m.node.registry.all() {
		w.mail.putImages(names, at)
	}
}

// imagesNamed makes the worker try again at once what has failed for want of an image that is there now. What has
// failed since then has failed in spite of it.
func (w *worker) imagesNamed(named map[string]time.Time) {
	for key, f := range w.tries.failed {
		if plan.KindOf(key) != plan.Image {
			continue
		}
		c := spec.FindContainer(w.pod, strings.TrimPrefix(key, string(plan.Image)+"/"))
		if c == nil {
			continue
		}
		ref, err := reference.ParseDockerRef(c.Image)
		if err != nil {
			continue
		}
		if at, ok := named[ref.String()]; ok && at.After(f.At) {
			f.Until, f.Count = time.Time{}, 0
			w.tries.failed[key] = f
		}
	}
}

func imageOf(i *runtimeapi.ImageSpec) pulled.Image {
	return pulled.Image{Ref: i.GetImage(), Handler: i.GetRuntimeHandler()}
}

// shownBy is nil for what the node has for all its pods, and when nothing was shown.
func shownBy(o *credential.Offer) *pulled.Secret {
	if o == nil || o.Secret == nil {
		return nil
	}
	return &pulled.Secret{UID: string(o.Secret.UID), Namespace: o.Secret.Namespace, Name: o.Secret.Name, CredentialHash: o.Hash()}
}

// pullRecorded pulls an image and has it remembered with what that was possible.
func (p puller) pullRecorded(ctx context.Context, pod *corev1.Pod, r *runtimeapi.PullImageRequest) (img spec.Image, err error) {
	pull, err := p.node.cfg.Images.Pulled.Begin(ctx, imageOf(r.GetImage()))
	if err != nil {
		return img, err
	}
	answer, with, err := p.pullWithCredentials(ctx, pod, r)
	if err != nil {
		pull.Failed(ctx.Err() != nil)
		return img, err
	}
	img, ok, err := p.findImage(ctx, imageSpec(answer.GetImageRef(), r.GetImage().GetRuntimeHandler()))
	if err == nil && !ok {
		err = errors.New("it is not there after it was pulled")
	}
	if err != nil {
		pull.Failed(true)
		return img, &reasoned{plan.ReasonImageInspect, err}
	}
	pull.Done(ctx, img.ID, shownBy(with))
	return img, nil
}

// pullWithCredentials shows the registry what there is for the image, one after the other, until it is content, and
// returns what that was. When there is nothing, the image may be public.
func (p puller) pullWithCredentials(ctx context.Context, pod *corev1.Pod, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, *credential.Offer, error) {
	offers := p.pullSecrets(pod, r.GetImage().GetImage())
	if p.node.cfg.Images.Credentials != nil {
		more, err := p.node.cfg.Images.Credentials.For(ctx, r.GetImage().GetImage())
		if err != nil {
			return nil, nil, fmt.Errorf("get credentials: %w", err)
		}
		for _, auth := range more {
			offers = append(offers, credential.Offer{Auth: auth})
		}
	}
	if len(offers) == 0 {
		answer, err := p.node.cfg.Runtime.PullImage(ctx, r)
		return answer, nil, err
	}
	var errs []error
	for i := range offers {
		r.Auth = offers[i].Auth
		answer, err := p.node.cfg.Runtime.PullImage(ctx, r)
		if err == nil || ctx.Err() != nil {
			return answer, &offers[i], err
		}
		errs = append(errs, err)
	}
	return nil, nil, errors.Join(errs...)
}

// pullSecrets are the credentials of the pod's own secrets. One that is missing is told, and is no reason not to try.
func (p puller) pullSecrets(pod *corev1.Pod, image string) []credential.Offer {
	var found []*corev1.Secret
	for _, ref := range pod.Spec.ImagePullSecrets {
		s, err := p.node.objects(pod).Secret(pod.Namespace, ref.Name)
		if err != nil {
			p.node.event(pod, corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
				"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", ref.Name)
			continue
		}
		found = append(found, s)
	}
	if len(found) == 0 {
		return nil
	}
	offers, err := credential.FromSecrets(image, found)
	if err != nil {
		p.node.event(pod, corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret", "%v", err)
	}
	return offers
}

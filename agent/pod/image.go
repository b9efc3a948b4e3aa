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

	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
)

// image sees to the image of a container's next start.
func (a acts) image(s plan.Step) act {
	w := a.worker
	pod, c, handler := w.pod, spec.FindContainer(w.pod, s.Container), w.node.handlerOf(w.pod)
	return func(ctx context.Context) (func(), error) {
		img, err := puller{w.node}.haveImage(ctx, pod, c, handler)
		if err != nil {
			return nil, err
		}
		for _, m := range c.VolumeMounts {
			v := spec.FindVolume(pod, m.Name)
			if v == nil || v.Image == nil {
				continue
			}
			of, err := puller{w.node}.haveImage(ctx, pod,
				&corev1.Container{Name: c.Name, Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy}, handler)
			if err != nil {
				return nil, err
			}
			if img.Volumes == nil {
				img.Volumes = map[string]string{}
			}
			img.Volumes[v.Name] = of.ID
		}
		return func() { w.tries.images[c.Name] = img }, nil
	}
}

// pullPolicy is the container's, or what it is by default for its image.
func pullPolicy(c *corev1.Container, ref string) corev1.PullPolicy {
	switch {
	case c.ImagePullPolicy != "":
		return c.ImagePullPolicy
	case strings.HasSuffix(ref, ":latest"):
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// haveImage sees to a container's image for a runtime handler: runtimes may keep images of each handler apart.
func (p puller) haveImage(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container, handler string,
) (spec.Image, error) {
	ref, err := tagged(c.Image)
	if err != nil {
		p.node.containerEvent(pod, c.Name, corev1.EventTypeWarning, "InspectFailed", "%v", err)
		return spec.Image{}, &reasoned{plan.ReasonInvalidImageName, err}
	}
	policy := pullPolicy(c, ref)
	if policy != corev1.PullAlways {
		img, ok, err := p.findImage(ctx, imageSpec(ref, handler))
		if err != nil {
			return spec.Image{}, &reasoned{plan.ReasonImageInspect, fmt.Errorf("Failed to inspect image %q: %w", c.Image, err)}
		}
		if ok {
			if ok, err = p.mayUse(ctx, pod, imageSpec(ref, handler), img.ID); err != nil {
				return spec.Image{}, &reasoned{plan.ReasonImageInspect, fmt.Errorf("Failed to inspect image %q: %w", c.Image, err)}
			}
		}
		if ok {
			p.node.containerEvent(pod, c.Name, corev1.EventTypeNormal, "Pulled",
				"Container image %q already present on machine and can be accessed by the pod", c.Image)
			return img, nil
		}
		if policy == corev1.PullNever {
			err := fmt.Errorf("Container image %q is not present with pull policy of Never", c.Image)
			p.node.containerEvent(pod, c.Name, corev1.EventTypeWarning, plan.ReasonErrImageNeverPull, "%v", err)
			return spec.Image{}, &reasoned{plan.ReasonErrImageNeverPull, err}
		}
	}
	return p.pullImage(ctx, pod, c, imageSpec(ref, handler))
}

// tagged is the image's name with the tag that it has by default.
func tagged(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", fmt.Errorf("Failed to apply default image tag %q: couldn't parse image name %q: %w", image, image, err)
	}
	if reference.IsNameOnly(named) {
		return image + ":latest", nil
	}
	return image, nil
}

func (p puller) pullImage(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container, image *runtimeapi.ImageSpec,
) (spec.Image, error) {
	p.node.containerEvent(pod, c.Name, corev1.EventTypeNormal, "Pulling", "Pulling image %q", c.Image)
	began := time.Now()
	config, _, err := spec.Sandbox(pod, p.node.SandboxSpec(), 0, "", nil)
	if err != nil {
		return spec.Image{}, &reasoned{plan.ReasonErrImagePull, err}
	}
	img, err := p.pullRecorded(ctx, pod, &runtimeapi.PullImageRequest{Image: image, SandboxConfig: config})
	if found, ok := errors.AsType[*reasoned](err); ok {
		return spec.Image{}, &reasoned{found.reason, fmt.Errorf("Failed to inspect image %q: %w", c.Image, err)}
	}
	if err != nil {
		if ctx.Err() == nil {
			p.node.containerEvent(pod, c.Name, corev1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", c.Image, err)
		}
		return spec.Image{}, &reasoned{plan.ReasonErrImagePull, fmt.Errorf("failed to pull image %q: %w", c.Image, err)}
	}
	took := time.Since(began).Round(time.Millisecond)
	p.node.containerEvent(pod, c.Name, corev1.EventTypeNormal, "Pulled", "Successfully pulled image %q in %v", c.Image,
		took)
	return img, nil
}

func imageSpec(ref, handler string) *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: ref, RuntimeHandler: handler}
}

func (p puller) findImage(ctx context.Context, image *runtimeapi.ImageSpec) (spec.Image, bool, error) {
	r, err := p.node.cfg.Runtime.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: image})
	if err != nil || r.GetImage() == nil {
		return spec.Image{}, false, err
	}
	img := spec.Image{ID: r.GetImage().GetId(), Username: r.GetImage().GetUsername()}
	if u := r.GetImage().GetUid(); u != nil {
		img.UID = &u.Value
	}
	return img, true, nil
}

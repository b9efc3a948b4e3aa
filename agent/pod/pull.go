package pod

import (
	"context"
	"errors"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pullWithCredentials shows the registry what there is for the image, one after the other, until it is content. When there is
// nothing, the image may be public.
func (w *worker) pullWithCredentials(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	if w.cfg.Credentials == nil {
		return w.cfg.Runtime.PullImage(ctx, r)
	}
	auths, err := w.cfg.Credentials.For(ctx, r.GetImage().GetImage())
	if err != nil {
		return nil, fmt.Errorf("get credentials: %w", err)
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

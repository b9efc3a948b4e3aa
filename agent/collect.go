package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/eviction/collect"
	"github.com/berth-node/berth/eviction/collect/images"
	"github.com/berth-node/berth/internal/filetree"
)

// Of what no pod needs, each kind has one who removes it: dead containers their pods' workers, images the collector of
// images, what is left of pods that are gone a worker that ends them. They do so by themselves. This is the same by
// hand.

// pruneTime is how long workers are waited for that remove something.
const pruneTime = 30 * time.Second

// pruner removes what no pod needs.
type pruner struct {
	pods   *pod.Manager
	left   *pod.Pruner
	images *images.Collector
	synced func() bool // it is known which pods there are
	log    *slog.Logger
}

// prune removes what no pod needs, or says what that is.
func (r *pruner) prune(ctx context.Context, dryRun bool) (*api.Pruned, error) {
	if !r.synced() {
		return nil, apierrors.NewServiceUnavailable("manifests are being read: it is not known yet what pods need")
	}
	out := &api.Pruned{DryRun: dryRun, Items: []api.Freed{}}
	// In this order: an image of which there is a dead container is in use.
	for _, part := range []func(context.Context, bool) ([]api.Freed, error){r.containers, r.gone, r.unused} {
		freed, err := part(ctx, dryRun)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			out.Errors = append(out.Errors, err.Error())
		}
		out.Items = append(out.Items, freed...)
	}
	for _, f := range out.Items {
		out.Bytes += f.Bytes
	}
	if !dryRun && len(out.Items) > 0 {
		r.log.Info("what no pod needs was removed by hand", "items", len(out.Items), "bytes", out.Bytes)
	}
	return out, nil
}

func (r *pruner) containers(ctx context.Context, dryRun bool) ([]api.Freed, error) {
	names := map[types.UID]string{}
	for _, p := range r.pods.List() {
		names[p.UID] = p.Namespace + "/" + p.Name
	}
	dead, err := r.left.WeighDead(ctx)
	if err != nil {
		return nil, err
	}
	freed := map[string]api.Freed{}
	list := make([]collect.Container, 0, len(dead))
	for _, c := range dead {
		freed[c.ID] = api.Freed{
			Kind: api.FreedContainer, Name: c.Name, ID: c.ID, Pod: names[c.Pod], Bytes: c.Layer.Bytes + c.Logs.Bytes,
		}
		list = append(list, c.Container)
	}
	id := func(c collect.Container) string { return c.ID }
	return ordered(ctx, dryRun, "dead containers", list, r.left.RemoveDead, freed, id)
}

func (r *pruner) gone(ctx context.Context, dryRun bool) ([]api.Freed, error) {
	list, err := r.left.Gone(ctx)
	if err != nil {
		return nil, err
	}
	freed := map[string]api.Freed{}
	for _, g := range list {
		f := api.Freed{Kind: api.FreedPod, Name: g.Path, Pod: string(g.UID)}
		if g.Logs {
			f.Kind = api.FreedLogs
		}
		// What cannot be counted can be removed nevertheless.
		if use, err := filetree.Count(ctx, g.Path); err == nil {
			f.Bytes = int64(use.Bytes)
		}
		freed[g.Path] = f
	}
	path := func(g pod.Gone) string { return g.Path }
	return ordered(ctx, dryRun, "directories of pods that are gone", list, r.left.RemoveGone, freed, path)
}

// ordered has workers remove a list of something, and says what that has freed, by key; or what it would.
func ordered[T any](
	ctx context.Context, dryRun bool, what string, list []T, remove func(context.Context, []T) []T,
	freed map[string]api.Freed, key func(T) string,
) ([]api.Freed, error) {
	gone := list
	if !dryRun && len(list) > 0 {
		ctx, cancel := context.WithTimeout(ctx, pruneTime)
		defer cancel()
		gone = remove(ctx, list)
	}
	var out []api.Freed
	for _, one := range gone {
		out = append(out, freed[key(one)])
	}
	if n := len(list) - len(gone); n > 0 {
		return out, fmt.Errorf("%d %s are not removed within %s", n, what, pruneTime)
	}
	return out, nil
}

func (r *pruner) unused(ctx context.Context, dryRun bool) ([]api.Freed, error) {
	list, err := r.images.Prune(ctx, time.Now(), dryRun)
	var out []api.Freed
	for _, i := range list {
		f := api.Freed{Kind: api.FreedImage, Name: i.ID, ID: i.ID, Bytes: i.Bytes}
		if len(i.Names) > 0 {
			f.Name = i.Names[0]
		}
		out = append(out, f)
	}
	return out, err
}

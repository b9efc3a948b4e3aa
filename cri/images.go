package cri

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/answer"
	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/image"

	"github.com/berth-node/berth/cri/background"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/store"
	"github.com/berth-node/berth/cri/usage"
)

// imageService is the images of the node, for clients of the CRI and of the HTTP interface.
type imageService struct {
	store    *image.Store
	host     *host.Host
	db       *store.DB
	tasks    *background.Tasks
	log      *slog.Logger
	dir      string        // of archives that are imported at the start
	imported chan struct{} // closed when that was read
	named    atomic.Pointer[func(names []string)]
	room     room
}

// get finds an image for a handler. While the archives of the image directory are still being imported, one that is not
// there may just not be there yet, so that is waited for.
func (i *imageService) get(ctx context.Context, ref string, h handler.Handler) (image.Image, error) {
	img, err := host.ImageFor(i.store, ref, h)
	if !errors.Is(err, image.ErrNotFound) {
		return img, err
	}
	select {
	case <-i.imported:
	default:
		select {
		case <-i.imported:
		case <-ctx.Done():
			return img, ctx.Err()
		}
		return host.ImageFor(i.store, ref, h)
	}
	return img, err
}

func (i *imageService) tellNamed(names []string) {
	if fn := i.named.Load(); fn != nil {
		(*fn)(names)
	}
}

// list lists images, all or the one the filter names.
func (i *imageService) list(_ context.Context, r *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	out := &runtimeapi.ListImagesResponse{}
	if ref := r.GetFilter().GetImage().GetImage(); ref != "" {
		h, err := i.handler(r.GetFilter().GetImage())
		if err != nil {
			return out, nil // there is nothing for a handler that there is not
		}
		if img, err := host.ImageFor(i.store, ref, h); err == nil {
			out.Images = append(out.Images, criImage(img))
		}
		return out, nil
	}
	for _, img := range i.store.List() {
		out.Images = append(out.Images, criImage(img))
	}
	return out, nil
}

// status returns an image, and nothing when there is none.
func (i *imageService) status(ctx context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	return call(ctx, "ImageStatus", func(ctx context.Context) (*runtimeapi.ImageStatusResponse, error) {
		h, err := i.handler(r.GetImage())
		if err != nil {
			return nil, err
		}
		img, err := i.get(ctx, r.GetImage().GetImage(), h)
		if errors.Is(err, image.ErrNotFound) {
			return &runtimeapi.ImageStatusResponse{}, nil
		}
		if err != nil {
			return nil, err
		}
		out := &runtimeapi.ImageStatusResponse{Image: criImage(img)}
		if r.GetVerbose() {
			out.Info, err = answer.Verbose(map[string]any{"chainID": img.TopLayer, "imageSpec": img.Config})
		}
		return out, err
	})
}

// pull brings an image here.
func (i *imageService) pull(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	return call(ctx, "PullImage", func(ctx context.Context) (*runtimeapi.PullImageResponse, error) {
		auth, err := authOf(r.GetAuth())
		if err != nil {
			return nil, err
		}
		if r.GetImage().GetImage() == "" {
			return nil, fault.Invalidf("pull image: no image is named")
		}
		h, err := i.handler(r.GetImage())
		if err != nil {
			return nil, err
		}
		pull := i.store.Pull
		if h.Kind == handler.Wasm {
			pull = i.store.PullModule
		}
		img, err := pull(ctx, r.GetImage().GetImage(), auth, nil)
		if err != nil {
			return nil, fmt.Errorf("pull image: %w", err)
		}
		return &runtimeapi.PullImageResponse{ImageRef: img.ID}, nil
	})
}

// handler is the runtime handler that an image is for. All of them share the layers of all images; what differs is
// which image is taken where there are several under one name.
func (i *imageService) handler(of *runtimeapi.ImageSpec) (handler.Handler, error) {
	h, err := i.host.Runtimes.Handlers.Get(of.GetRuntimeHandler())
	if err != nil {
		return h, fmt.Errorf("image %q: %w: %w", of.GetImage(), fault.ErrInvalid, err)
	}
	return h, nil
}

// authOf also reads the combined form that docker's configuration files have: base64 of "user:password".
func authOf(a *runtimeapi.AuthConfig) (*image.Auth, error) {
	if a == nil {
		return nil, nil
	}
	out := &image.Auth{
		Username: a.GetUsername(), Password: a.GetPassword(), IdentityToken: a.GetIdentityToken(), RegistryToken: a.GetRegistryToken(),
		ServerAddress: a.GetServerAddress(),
	}
	if out.Username == "" && a.GetAuth() != "" {
		b, err := base64.StdEncoding.DecodeString(a.GetAuth())
		if err != nil {
			return nil, fault.Invalidf("decode auth: %w", err)
		}
		user, password, ok := strings.Cut(string(b), ":")
		if !ok {
			return nil, fault.Invalidf("decode auth: it is not user:password")
		}
		out.Username, out.Password = user, strings.TrimRight(password, "\x00")
	}
	return out, nil
}

// remove removes an image with all its names.
func (i *imageService) remove(ctx context.Context, r *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	return call(ctx, "RemoveImage", func(ctx context.Context) (*runtimeapi.RemoveImageResponse, error) {
		h, err := i.handler(r.GetImage())
		if err != nil {
			return nil, err
		}
		remove := i.store.Remove
		if h.Kind == handler.Wasm {
			remove = i.store.RemoveModule
		}
		err = remove(ctx, r.GetImage().GetImage())
		if errors.Is(err, image.ErrNotFound) {
			err = nil
		}
		return &runtimeapi.RemoveImageResponse{}, err
	})
}

// usage says what images take.
func (i *imageService) usage(ctx context.Context, _ *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return call(ctx, "ImageFsInfo", func(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
		bytes, inodes, err := i.store.Usage()
		if err != nil {
			return nil, err
		}
		usage := []*runtimeapi.FilesystemUsage{{
			Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: i.host.Paths.Snapshots()},
			UsedBytes: usage.Value(bytes), InodesUsed: usage.Value(inodes),
		}}
		return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage, ContainerFilesystems: usage}, nil
	})
}

func criImage(img image.Image) *runtimeapi.Image {
	out := &runtimeapi.Image{
		Id: img.ID, RepoTags: img.Tags, RepoDigests: img.Digests, Size: uint64(max(img.Size, 0)), Pinned: img.Pinned,
		Spec: &runtimeapi.ImageSpec{Image: img.ID},
	}
	uid, name := oci.ImageUser(img.Config.Config.User)
	if out.Username = name; uid != nil {
		out.Uid = &runtimeapi.Int64Value{Value: *uid}
	}
	return out
}

// dropped looks whether a container was the last that an image, removed meanwhile, had to stay for.
func (i *imageService) dropped(imageID string) {
	if _, err := i.store.Get(imageID); errors.Is(err, image.ErrNotFound) {
		i.tasks.Start(i.collect)
	}
}

// collect removes the layers that no image and no container has any more, and what pulls that failed have left.
func (i *imageService) collect(ctx context.Context) {
	if err := i.store.Collect(ctx); err != nil && ctx.Err() == nil {
		i.log.Warn("content that nobody needs is not removed", "error", err)
	}
}

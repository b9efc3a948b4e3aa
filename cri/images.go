package cri

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/oci"
)

// Images returns the image store.
func (s *Server) Images() *image.Store { return s.images }

// getImage finds an image for a handler. While the archives of the image directory are still being imported, one that is not there may
// just not be there yet, so that is waited for.
func (s *Server) getImage(ctx context.Context, ref string, h handler.Handler) (image.Image, error) {
	img, err := imageFor(s.images, ref, h)
	if !errors.Is(err, image.ErrNotFound) {
		return img, err
	}
	select {
	case <-s.imported:
	default:
		select {
		case <-s.imported:
		case <-ctx.Done():
			return img, ctx.Err()
		}
		return imageFor(s.images, ref, h)
	}
	return img, err
}

// imageFor is the image that a name stands for where a handler is to run it.
func imageFor(s images, ref string, h handler.Handler) (image.Image, error) {
	if h.Kind == handler.Wasm {
		return s.GetModule(ref)
	}
	return s.Get(ref)
}

// TellNamed has fn called, from now on, with the complete names that have an image, when they have it: pulled, imported or built by
// whomever. fn returns quickly.
func (s *Server) TellNamed(fn func(names []string)) { s.named.Store(&fn) }

func (s *Server) imagesNamed(names []string) {
	if fn := s.named.Load(); fn != nil {
		(*fn)(names)
	}
}

// ListImages lists images, all or the one the filter names.
func (s *Server) ListImages(_ context.Context, r *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	out := &runtimeapi.ListImagesResponse{}
	if ref := r.GetFilter().GetImage().GetImage(); ref != "" {
		h, err := s.imageHandler(r.GetFilter().GetImage())
		if err != nil {
			return out, nil // there is nothing for a handler that there is not
		}
		if img, err := imageFor(s.images, ref, h); err == nil {
			out.Images = append(out.Images, criImage(img))
		}
		return out, nil
	}
	for _, img := range s.images.List() {
		out.Images = append(out.Images, criImage(img))
	}
	return out, nil
}

// ImageStatus returns an image, and nothing when there is none.
func (s *Server) ImageStatus(ctx context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	return call(ctx, "ImageStatus", func(ctx context.Context) (*runtimeapi.ImageStatusResponse, error) {
		h, err := s.imageHandler(r.GetImage())
		if err != nil {
			return nil, err
		}
		img, err := s.getImage(ctx, r.GetImage().GetImage(), h)
		if errors.Is(err, image.ErrNotFound) {
			return &runtimeapi.ImageStatusResponse{}, nil
		}
		if err != nil {
			return nil, err
		}
		out := &runtimeapi.ImageStatusResponse{Image: criImage(img)}
		if r.GetVerbose() {
			out.Info, err = verbose(map[string]any{"chainID": img.TopLayer, "imageSpec": img.Config})
		}
		return out, err
	})
}

// PullImage brings an image here.
func (s *Server) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	return call(ctx, "PullImage", func(ctx context.Context) (*runtimeapi.PullImageResponse, error) {
		auth, err := authOf(r.GetAuth())
		if err != nil {
			return nil, err
		}
		if r.GetImage().GetImage() == "" {
			return nil, invalidf("pull image: no image is named")
		}
		h, err := s.imageHandler(r.GetImage())
		if err != nil {
			return nil, err
		}
		pull := s.images.Pull
		if h.Kind == handler.Wasm {
			pull = s.images.PullModule
		}
		img, err := pull(ctx, r.GetImage().GetImage(), auth, nil)
		if err != nil {
			return nil, fmt.Errorf("pull image: %w", err)
		}
		return &runtimeapi.PullImageResponse{ImageRef: img.ID}, nil
	})
}

// imageHandler is the runtime handler that an image is for. All of them share the layers of all images; what differs is which image is
// taken where there are several under one name.
func (s *Server) imageHandler(i *runtimeapi.ImageSpec) (handler.Handler, error) {
	h, err := s.machine.handlers.Get(i.GetRuntimeHandler())
	if err != nil {
		return h, fmt.Errorf("image %q: %w: %w", i.GetImage(), errInvalid, err)
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
			return nil, invalidf("decode auth: %w", err)
		}
		user, password, ok := strings.Cut(string(b), ":")
		if !ok {
			return nil, invalidf("decode auth: it is not user:password")
		}
		out.Username, out.Password = user, strings.TrimRight(password, "\x00")
	}
	return out, nil
}

// RemoveImage removes an image with all its names.
func (s *Server) RemoveImage(ctx context.Context, r *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	return call(ctx, "RemoveImage", func(ctx context.Context) (*runtimeapi.RemoveImageResponse, error) {
		h, err := s.imageHandler(r.GetImage())
		if err != nil {
			return nil, err
		}
		remove := s.images.Remove
		if h.Kind == handler.Wasm {
			remove = s.images.RemoveModule
		}
		err = remove(ctx, r.GetImage().GetImage())
		if errors.Is(err, image.ErrNotFound) {
			err = nil
		}
		return &runtimeapi.RemoveImageResponse{}, err
	})
}

// ImageFsInfo says what images take.
func (s *Server) ImageFsInfo(ctx context.Context, _ *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return call(ctx, "ImageFsInfo", func(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
		bytes, inodes, err := s.images.Usage()
		if err != nil {
			return nil, err
		}
		usage := []*runtimeapi.FilesystemUsage{{
			Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: s.machine.paths.snapshots()},
			UsedBytes: value(bytes), InodesUsed: value(inodes),
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

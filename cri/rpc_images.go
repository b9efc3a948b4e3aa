package cri

import (
	"context"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ImageServer is the service of the CRI for images. As with [Server] each call is handed on.
type ImageServer struct {
	runtimeapi.UnimplementedImageServiceServer

	images *imageService
}

var _ runtimeapi.ImageServiceServer = (*ImageServer)(nil)

// ImageServer is the runtime's images.
func (s *Server) ImageServer() *ImageServer { return &ImageServer{images: s.core.images} }

// ListImages lists images, all or the one the filter names.
func (s *ImageServer) ListImages(
	ctx context.Context, r *runtimeapi.ListImagesRequest,
) (*runtimeapi.ListImagesResponse, error) {
	return s.images.list(ctx, r)
}

// ImageStatus returns an image, and nothing when there is none.
func (s *ImageServer) ImageStatus(
	ctx context.Context, r *runtimeapi.ImageStatusRequest,
) (*runtimeapi.ImageStatusResponse, error) {
	return s.images.status(ctx, r)
}

// PullImage brings an image here.
func (s *ImageServer) PullImage(
	ctx context.Context, r *runtimeapi.PullImageRequest,
) (*runtimeapi.PullImageResponse, error) {
	return s.images.pull(ctx, r)
}

// RemoveImage removes an image with all its names.
func (s *ImageServer) RemoveImage(
	ctx context.Context, r *runtimeapi.RemoveImageRequest,
) (*runtimeapi.RemoveImageResponse, error) {
	return s.images.remove(ctx, r)
}

// ImageFsInfo says what images take.
func (s *ImageServer) ImageFsInfo(
	ctx context.Context, r *runtimeapi.ImageFsInfoRequest,
) (*runtimeapi.ImageFsInfoResponse, error) {
	return s.images.usage(ctx, r)
}

// StreamImages streams the list of images.
func (s *ImageServer) StreamImages(
	r *runtimeapi.StreamImagesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse],
) error {
	l, err := s.ListImages(stream.Context(), &runtimeapi.ListImagesRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return send(stream, l.GetImages(), func(p []*runtimeapi.Image) *runtimeapi.StreamImagesResponse {
		return &runtimeapi.StreamImagesResponse{Images: p}
	})
}

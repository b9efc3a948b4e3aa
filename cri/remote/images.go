package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/imageapi"
	"github.com/berth-node/berth/internal/disk"
)

// imageCalls are the calls that the CLI's commands about images come to.
type imageCalls interface {
	ImageStatus(context.Context, *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error)
	PullImage(context.Context, *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error)
	ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error)
	RemoveImage(context.Context, *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error)
	ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error)
}

// imageHandler serves images over HTTP.
type imageHandler struct {
	runtime imageCalls
	room    *room
}

// room is made for images that have none, once it is known by whom.
type room struct {
	make atomic.Pointer[func(ctx context.Context, since time.Time) (bool, error)]
}

// pull pulls an image, again when there was no room for it and more of it can be made. A runtime behind a socket says
// so in words only.
func (r *room) pull(
	ctx context.Context, runtime imageCalls, req *runtimeapi.PullImageRequest,
) (*runtimeapi.PullImageResponse, error) {
	var resp *runtimeapi.PullImageResponse
	var roomErr error
	pull := func() (err error) {
		resp, err = runtime.PullImage(ctx, req)
		return err
	}
	err := disk.Again(ctx, pull, func(since time.Time, _ error) bool {
		fn := r.make.Load()
		if fn == nil {
			return false
		}
		more, err := (*fn)(ctx, since)
		if !more {
			roomErr = err
		}
		return more
	})
	if roomErr != nil {
		err = errors.Join(err, roomErr)
	}
	return resp, err
}

func newImageHandler(runtime imageCalls, socket string, r *room) http.Handler {
	h := imageHandler{runtime, r}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /images/{$}", h.list)
	mux.HandleFunc("DELETE /images/{$}", h.remove)
	mux.HandleFunc("POST /images/pull", h.pull)
	mux.HandleFunc("POST /images/import", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "import images: the CRI has no such call; use the tools of the runtime at "+socket+
			", with containerd: ctr --address "+socket+" --namespace k8s.io images import FILE", http.StatusNotImplemented)
	})
	return mux
}

func (h imageHandler) list(w http.ResponseWriter, req *http.Request) {
	l, err := h.runtime.ListImages(req.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		fail(w, err)
		return
	}
	out := []imageapi.Image{}
	for _, img := range l.GetImages() {
		out = append(out, imageInfo(img))
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the client is gone, or not
}

func (h imageHandler) remove(w http.ResponseWriter, req *http.Request) {
	spec := &runtimeapi.ImageSpec{Image: req.FormValue("ref")}
	// The CRI is content when there is nothing to remove. Who has mistyped a name wants to know.
	s, err := h.runtime.ImageStatus(req.Context(), &runtimeapi.ImageStatusRequest{Image: spec})
	if err == nil && s.GetImage() == nil {
		err = status.Errorf(codes.NotFound, "image %q: not found", spec.Image)
	}
	if err == nil && req.FormValue("force") != "true" {
		img := s.GetImage()
		var l *runtimeapi.ListContainersResponse
		if l, err = h.runtime.ListContainers(req.Context(), &runtimeapi.ListContainersRequest{}); err == nil {
			names := slices.Concat(img.GetRepoTags(), img.GetRepoDigests())
			if used := imageapi.InUse(l.GetContainers(), img.GetId(), names...); used != nil {
				http.Error(w, fmt.Sprintf("image %q: %v", spec.Image, used), http.StatusConflict)
				return
			}
		}
	}
	if err == nil {
		_, err = h.runtime.RemoveImage(req.Context(), &runtimeapi.RemoveImageRequest{Image: spec})
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (h imageHandler) pull(w http.ResponseWriter, req *http.Request) {
	ref := req.URL.Query().Get("ref")
	if ref == "" {
		http.Error(w, "pull image: no ref", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	tell := func(l imageapi.Line) {
		_ = json.NewEncoder(w).Encode(l)
		_ = http.NewResponseController(w).Flush()
	}
	tell(imageapi.Line{Progress: &imageapi.Progress{Ref: ref, Phase: "resolving"}})
	p, err := h.room.pull(req.Context(), h.runtime, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil {
		tell(imageapi.Line{Error: status.Convert(err).Message()})
		return
	}
	info := imageapi.Image{ID: p.GetImageRef(), Tags: []string{ref}}
	s, err := h.runtime.ImageStatus(req.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err == nil && s.GetImage() != nil {
		info = imageInfo(s.GetImage())
	}
	tell(imageapi.Line{Images: []imageapi.Image{info}})
}

func imageInfo(img *runtimeapi.Image) imageapi.Image {
	return imageapi.Image{
		ID: img.GetId(), Tags: img.GetRepoTags(), Digests: img.GetRepoDigests(), Size: int64(img.GetSize()), Pinned: img.GetPinned(),
	}
}

// fail answers with an error of the runtime.
func fail(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	code := http.StatusInternalServerError
	switch s.Code() {
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.InvalidArgument:
		code = http.StatusBadRequest
	case codes.Unavailable:
		code = http.StatusBadGateway
	}
	http.Error(w, s.Message(), code)
}

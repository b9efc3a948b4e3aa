package remote

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri"
)

// ImageHandler serves the images to the CLI as [cri.Server.ImageHandler] does, as far as the CRI goes: it tells no progress of a
// pull, and has no import.
func (r *Runtime) ImageHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /images/{$}", r.serveList)
	mux.HandleFunc("DELETE /images/{$}", r.serveRemove)
	mux.HandleFunc("POST /images/pull", r.servePull)
	mux.HandleFunc("POST /images/import", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "import images: the CRI has no such call; use the tools of the runtime at "+r.path+
			", with containerd: ctr --address "+r.path+" --namespace k8s.io images import FILE", http.StatusNotImplemented)
	})
	return mux
}

func (r *Runtime) serveList(w http.ResponseWriter, req *http.Request) {
	l, err := r.ListImages(req.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		fail(w, err)
		return
	}
	out := []cri.ImageInfo{}
	for _, img := range l.GetImages() {
		out = append(out, imageInfo(img))
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the client is gone, or not
}

func (r *Runtime) serveRemove(w http.ResponseWriter, req *http.Request) {
	spec := &runtimeapi.ImageSpec{Image: req.FormValue("ref")}
	// The CRI is content when there is nothing to remove. Who has mistyped a name wants to know.
	s, err := r.ImageStatus(req.Context(), &runtimeapi.ImageStatusRequest{Image: spec})
	if err == nil && s.GetImage() == nil {
		err = status.Errorf(codes.NotFound, "image %q: not found", spec.Image)
	}
	if err == nil && req.FormValue("force") != "true" {
		img := s.GetImage()
		var l *runtimeapi.ListContainersResponse
		if l, err = r.ListContainers(req.Context(), &runtimeapi.ListContainersRequest{}); err == nil {
			if used := cri.InUse(l.GetContainers(), img.GetId(), slices.Concat(img.GetRepoTags(), img.GetRepoDigests())...); used != nil {
				http.Error(w, fmt.Sprintf("image %q: %v", spec.Image, used), http.StatusConflict)
				return
			}
		}
	}
	if err == nil {
		_, err = r.RemoveImage(req.Context(), &runtimeapi.RemoveImageRequest{Image: spec})
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (r *Runtime) servePull(w http.ResponseWriter, req *http.Request) {
	ref := req.URL.Query().Get("ref")
	if ref == "" {
		http.Error(w, "pull image: no ref", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	tell := func(l cri.ImageLine) {
		_ = json.NewEncoder(w).Encode(l)
		_ = http.NewResponseController(w).Flush()
	}
	tell(cri.ImageLine{Progress: &cri.ImageProgress{Ref: ref, Phase: "resolving"}})
	p, err := r.PullImage(req.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil {
		tell(cri.ImageLine{Error: status.Convert(err).Message()})
		return
	}
	info := cri.ImageInfo{ID: p.GetImageRef(), Tags: []string{ref}}
	if s, err := r.ImageStatus(req.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err == nil && s.GetImage() != nil {
		info = imageInfo(s.GetImage())
	}
	tell(cri.ImageLine{Images: []cri.ImageInfo{info}})
}

func imageInfo(img *runtimeapi.Image) cri.ImageInfo {
	return cri.ImageInfo{ID: img.GetId(), Tags: img.GetRepoTags(), Digests: img.GetRepoDigests(), Size: int64(img.GetSize()), Pinned: img.GetPinned()}
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

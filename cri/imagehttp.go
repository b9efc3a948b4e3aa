package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/berth-node/berth/cri/image"
)

// ImageInfo is an image as the HTTP interface shows it.
type ImageInfo struct {
	ID       string    `json:"id"`
	Tags     []string  `json:"tags,omitempty"`
	Digests  []string  `json:"digests,omitempty"`
	Size     int64     `json:"size"`
	Pinned   bool      `json:"pinned,omitempty"`
	PulledAt time.Time `json:"pulledAt"`
}

// ImageLine is one line of the answer to a pull or an import: progress many times, then the images or an error.
type ImageLine struct {
	Progress *ImageProgress `json:"progress,omitempty"`
	Images   []ImageInfo    `json:"images,omitempty"`
	Error    string         `json:"error,omitempty"`
}

// ImageProgress says how far a layer is, or the image as a whole where Layer is empty.
type ImageProgress struct {
	Ref   string `json:"ref,omitempty"`
	Layer string `json:"layer,omitempty"`
	Phase string `json:"phase"`
	Done  int64  `json:"done,omitempty"`
	Total int64  `json:"total,omitempty"` // 0 = not known
}

// ImageHandler serves the images to the CLI: GET /images/ lists them, POST /images/pull?ref=NAME pulls one, POST /images/import
// imports the archive that is the body, DELETE /images/?ref=NAME removes one, with
// force=true one that is in use too. Pulls and imports answer in lines of JSON.
func (s *Server) ImageHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /images/{$}", func(w http.ResponseWriter, _ *http.Request) {
		out := []ImageInfo{}
		for _, img := range s.images.List() {
			out = append(out, imageInfo(img))
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // the client is gone, or not
	})
	mux.HandleFunc("DELETE /images/{$}", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("force") != "true" {
			if err := s.imageInUse(r.FormValue("ref")); err != nil {
				http.Error(w, fmt.Sprintf("image %q: %v", r.FormValue("ref"), err), http.StatusConflict)
				return
			}
		}
		switch err := s.images.Remove(r.Context(), r.FormValue("ref")); {
		case errors.Is(err, image.ErrNotFound):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mux.HandleFunc("POST /images/pull", func(w http.ResponseWriter, r *http.Request) {
		ref := r.URL.Query().Get("ref")
		if ref == "" {
			http.Error(w, "pull image: no ref", http.StatusBadRequest)
			return
		}
		answer(w, r, func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error) {
			img, err := s.images.Pull(ctx, ref, nil, progress)
			return []image.Image{img}, err
		})
	})
	mux.HandleFunc("POST /images/import", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error) {
			return s.images.Import(ctx, r.Body, progress)
		})
	})
	return mux
}

// answer streams what work tells while it works. The last line says how it ended, since by then the status has been sent.
func answer(w http.ResponseWriter, r *http.Request, work func(context.Context, func(image.Progress)) ([]image.Image, error)) {
	// Else the server reads the rest of the body before the first line of the answer goes out.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	l := lines{w: w, c: http.NewResponseController(w)}
	images, err := work(r.Context(), func(p image.Progress) {
		l.write(ImageLine{Progress: &ImageProgress{Ref: p.Ref, Layer: p.Layer, Phase: string(p.Phase), Done: p.Done, Total: p.Total}})
	})
	if err != nil {
		l.write(ImageLine{Error: err.Error()})
		return
	}
	last := ImageLine{Images: []ImageInfo{}}
	for _, img := range images {
		last.Images = append(last.Images, imageInfo(img))
	}
	l.write(last)
}

// lines writes lines from several goroutines, and nothing any more once the client is gone.
type lines struct {
	mu   sync.Mutex
	w    io.Writer
	c    *http.ResponseController
	dead bool
}

func (l *lines) write(line ImageLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return
	}
	b, err := json.Marshal(line)
	if err == nil {
		if _, err = l.w.Write(append(b, '\n')); err == nil {
			err = l.c.Flush()
		}
	}
	l.dead = err != nil
}

func imageInfo(img image.Image) ImageInfo {
	return ImageInfo{ID: img.ID, Tags: img.Tags, Digests: img.Digests, Size: img.Size, Pinned: img.Pinned, PulledAt: img.PulledAt}
}

package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/imageapi"
)

func (i *imageService) http(ctrs *container.Containers) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /images/{$}", func(w http.ResponseWriter, _ *http.Request) {
		out := []imageapi.Image{}
		for _, img := range i.store.List() {
			out = append(out, imageInfo(img))
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // the client is gone, or not
	})
	mux.HandleFunc("DELETE /images/{$}", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("force") != "true" {
			if err := i.inUse(ctrs, r.FormValue("ref")); err != nil {
				http.Error(w, fmt.Sprintf("image %q: %v", r.FormValue("ref"), err), http.StatusConflict)
				return
			}
		}
		switch err := i.store.Remove(r.Context(), r.FormValue("ref")); {
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
		respond(w, r, func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error) {
			var img image.Image
			err := i.withRoom(ctx, func() (err error) {
				img, err = i.store.Pull(ctx, ref, nil, progress)
				return err
			})
			return []image.Image{img}, err
		})
	})
	mux.HandleFunc("POST /images/import", func(w http.ResponseWriter, r *http.Request) {
		respond(w, r, func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error) {
			var imgs []image.Image
			err := i.importOnce(ctx, func() (err error) {
				imgs, err = i.store.Import(ctx, r.Body, progress)
				return err
			})
			return imgs, err
		})
	})
	return mux
}

// respond streams what work tells while it works. The last line says how it ended, since by then the status has been
// sent.
func respond(w http.ResponseWriter, r *http.Request, work func(context.Context, func(image.Progress)) ([]image.Image, error)) {
	// Else the server reads the rest of the body before the first line of the answer goes out.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	l := lines{w: w, c: http.NewResponseController(w)}
	images, err := work(r.Context(), func(p image.Progress) {
		l.write(imageapi.Line{Progress: &imageapi.Progress{Ref: p.Ref, Layer: p.Layer, Phase: string(p.Phase), Done: p.Done, Total: p.Total}})
	})
	if err != nil {
		l.write(imageapi.Line{Error: err.Error()})
		return
	}
	last := imageapi.Line{Images: []imageapi.Image{}}
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

func (l *lines) write(line imageapi.Line) {
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

func imageInfo(img image.Image) imageapi.Image {
	return imageapi.Image{ID: img.ID, Tags: img.Tags, Digests: img.Digests, Size: img.Size, Pinned: img.Pinned, PulledAt: img.PulledAt}
}

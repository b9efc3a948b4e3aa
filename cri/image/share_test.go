package image

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-node/berth/cri/image/imagetest"
	"github.com/berth-node/berth/cri/image/registry"
)

// held has a registry answer requests for the big layer only when it is told to, and tells of the first.
func held(then func(http.ResponseWriter, *http.Request, http.Handler)) (
	fault func(http.ResponseWriter, *http.Request, http.Handler), asked <-chan struct{}, release func(),
) {
	big := imagetest.Build(heavy).Layers[1].Desc.Digest.Encoded()
	reached, hold := make(chan struct{}), make(chan struct{})
	tell := sync.OnceFunc(func() { close(reached) })
	return func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		if !strings.HasSuffix(q.URL.Path, big) {
			next.ServeHTTP(w, q)
			return
		}
		tell()
		select {
		case <-hold:
			then(w, q, next)
		case <-q.Context().Done():
		}
	}, reached, sync.OnceFunc(func() { close(hold) })
}

// begin pulls beside the test.
func begin(t *testing.T, w *world, name string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := w.Pull(context.WithoutCancel(t.Context()), name, nil, nil)
		done <- err
	}()
	return done
}

// TestSlowRegistry: a registry that does not send a layer keeps nobody who has the same layer from another one.
func TestSlowRegistry(t *testing.T) {
	w := newWorld(t)
	w.pulls.content.patience = time.Millisecond
	slow, slowNames := served(t, heavy)
	_, names := served(t, heavy)
	fault, asked, release := held(func(rw http.ResponseWriter, q *http.Request, next http.Handler) { next.ServeHTTP(rw, q) })
	defer release()
	slow.Fault(fault)
	done := begin(t, w, slowNames[0])
	<-asked
	patient, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	img, err := w.Pull(patient, names[0], nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.show(t, img, "f"); len(got) != 1_600_000 {
		t.Errorf("f has %d bytes", len(got))
	}
	release()
	if err := <-done; err != nil {
		t.Errorf("the slow one: %v", err)
	}
	if got := w.show(t, mustPull(t, w, slowNames[0]), "f"); len(got) != 1_600_000 {
		t.Errorf("f has %d bytes", len(got))
	}
	if err := errors.Join(w.Remove(t.Context(), img.ID), w.Collect(t.Context())); err != nil || w.left(t) != "" {
		t.Errorf("%v, left:\n%s", err, w.left(t))
	}
}

// TestDeniedToAnother: whoever has waited for somebody whom the registry does not let have a layer asks for it himself.
func TestDeniedToAnother(t *testing.T) {
	for status, want := range map[int]error{http.StatusForbidden: registry.ErrDenied, http.StatusNotFound: registry.ErrNotFound} {
		t.Run(http.StatusText(status), func(t *testing.T) { deniedToAnother(t, status, want) })
	}
}

func deniedToAnother(t *testing.T, status int, want error) {
	w := newWorld(t)
	other := heavy
	other.Name = "other:v1"
	r, names := served(t, heavy, other)
	fault, asked, release := held(func(rw http.ResponseWriter, q *http.Request, next http.Handler) {
		if strings.Contains(q.URL.Path, "/heavy/") {
			rw.WriteHeader(status)
			return
		}
		next.ServeHTTP(rw, q)
	})
	defer release()
	r.Fault(fault)
	denied := begin(t, w, names[0])
	<-asked
	let := begin(t, w, names[1])
	big := imagetest.Build(heavy).Layers[1].Desc.Digest.String()
	waitFor(t, func() bool {
		w.unpacker.flights.mu.Lock()
		defer w.unpacker.flights.mu.Unlock()
		for key, f := range w.unpacker.flights.of {
			f.mu.Lock()
			both := strings.Contains(key, big) && len(f.waiters) == 2
			f.mu.Unlock()
			if both {
				return true
			}
		}
		return false
	})
	release()
	if err := <-denied; !errors.Is(err, want) {
		t.Errorf("who may not: %v, want %v", err, want)
	}
	if err := <-let; err != nil {
		t.Errorf("who may: %v", err)
	}
}

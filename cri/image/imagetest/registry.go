package imagetest

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry is one in this process, on a loopback port of its own.
type Registry struct {
	Host string // 127.0.0.1:port

	mu       sync.Mutex
	requests []*http.Request
	fault    func(w http.ResponseWriter, r *http.Request, next http.Handler)
}

// NewRegistry starts a registry that ends with the test.
func NewRegistry(t testing.TB) *Registry {
	t.Helper()
	r := &Registry{}
	backend := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.requests = append(r.requests, req.Clone(req.Context()))
		fault := r.fault
		r.mu.Unlock()
		if fault != nil && req.Header.Get("X-Imagetest") == "" {
			fault(w, req, backend)
			return
		}
		backend.ServeHTTP(w, req)
	}))
	t.Cleanup(s.Close)
	r.Host = strings.TrimPrefix(s.URL, "http://")
	return r
}

// Fault puts f before the registry; it may answer itself or hand on to next. Pushes do not see it. nil = none.
func (r *Registry) Fault(f func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = f
}

// Requests are those seen so far, pushes left out, and forgets them.
func (r *Registry) Requests() []*http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var seen []*http.Request
	for _, q := range r.requests {
		if q.Header.Get("X-Imagetest") == "" {
			seen = append(seen, q)
		}
	}
	r.requests = nil
	return seen
}

// Push puts images into the registry at host (without a scheme, plain http) and returns the name of the first.
func Push(host string, images ...*Image) (string, error) {
	for _, i := range images {
		repo, tag, ok := strings.Cut(i.Name, ":")
		if !ok {
			tag = "latest"
		}
		if err := pushParts(host, repo, i); err != nil {
			return "", err
		}
		if err := putManifest(host, repo, tag, i.Type, i.Manifest); err != nil {
			return "", err
		}
	}
	return host + "/" + images[0].Name, nil
}

// PushIndex puts images for several platforms under one name, and returns it with the digest of the index.
func PushIndex(host, name string, images ...*Image) (string, digest.Digest, error) {
	repo, tag, _ := strings.Cut(name, ":")
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, i := range images {
		if err := pushParts(host, repo, i); err != nil {
			return "", "", err
		}
		if err := putManifest(host, repo, i.Digest.String(), i.Type, i.Manifest); err != nil {
			return "", "", err
		}
		index.Manifests = append(index.Manifests, i.Desc())
	}
	body := encode(index)
	return host + "/" + name, digest.FromBytes(body), putManifest(host, repo, tag, index.MediaType, body)
}

func pushParts(host, repo string, i *Image) error {
	blobs := [][]byte{i.Config}
	for _, l := range i.Layers {
		blobs = append(blobs, l.Data)
	}
	for _, b := range blobs {
		if err := putBlob(host, repo, b); err != nil {
			return err
		}
	}
	return nil
}

// PushBlob puts one blob into a repository.
func PushBlob(host, repo string, data []byte) error { return putBlob(host, repo, data) }

func putBlob(host, repo string, data []byte) error {
	resp, err := send(http.MethodPost, "http://"+host+"/v2/"+repo+"/blobs/uploads/", "", nil, http.StatusAccepted)
	if err != nil {
		return err
	}
	where, err := resp.Location()
	if err != nil {
		return err
	}
	q := where.Query()
	q.Set("digest", digest.FromBytes(data).String())
	where.RawQuery = q.Encode()
	_, err = send(http.MethodPut, where.String(), "application/octet-stream", data, http.StatusCreated)
	return err
}

func putManifest(host, repo, object, mediaType string, body []byte) error {
	u := url.URL{Scheme: "http", Host: host, Path: "/v2/" + repo + "/manifests/" + object}
	_, err := send(http.MethodPut, u.String(), mediaType, body, http.StatusCreated)
	return err
}

func send(method, u, contentType string, body []byte, want int) (*http.Response, error) {
	req, err := http.NewRequest(method, u, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Imagetest", "push")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	t := &http.Transport{DisableKeepAlives: true}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
	if resp.StatusCode != want {
		return nil, fmt.Errorf("%s %s: %s: %s", method, u, resp.Status, said)
	}
	return resp, nil
}

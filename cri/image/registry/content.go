package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// MaxManifest is how big a manifest or index may be: as much as registries take.
const MaxManifest = 4 << 20

// Docker's own names of what the OCI standardised later.
const (
	DockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	DockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

var manifestTypes = strings.Join([]string{
	ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, DockerList, DockerManifest, "*/*;q=0.1",
}, ", ")

// Manifest is the bytes of a manifest or an index, with what they are said to be.
type Manifest struct {
	MediaType string
	Digest    digest.Digest
	Body      []byte
}

// Head asks which manifest a tag, or a digest, names, without fetching it. A registry that does not tell gives an empty
// digest.
func (r *Repository) Head(ctx context.Context, tag string) (digest.Digest, error) {
	sep := ":"
	if strings.Contains(tag, ":") {
		sep = "@"
	}
	resp, err := r.do(ctx, query{
		method: http.MethodHead, path: "manifests/" + tag, accept: manifestTypes,
		needs: docker.HostCapabilityPull | docker.HostCapabilityResolve,
	})
	if err != nil {
		return "", fmt.Errorf("resolve %s%s%s: %w", reference.FamiliarName(r.name), sep, tag, err)
	}
	resp.Body.Close()
	d := digest.Digest(resp.Header.Get("Docker-Content-Digest"))
	if d.Validate() != nil {
		return "", nil
	}
	return d, nil
}

// Tag fetches the manifest that a tag names now. This is the one thing that is believed; all else is held to its
// digest.
func (r *Repository) Tag(ctx context.Context, tag string) (Manifest, error) {
	m, err := r.manifest(ctx, "manifests/"+tag, docker.HostCapabilityPull|docker.HostCapabilityResolve, "")
	if err != nil {
		return m, fmt.Errorf("get manifest of %s:%s: %w", reference.FamiliarName(r.name), tag, err)
	}
	return m, nil
}

// Digest fetches the manifest d.
func (r *Repository) Digest(ctx context.Context, d digest.Digest) (Manifest, error) {
	m, err := r.manifest(ctx, "manifests/"+d.String(), docker.HostCapabilityPull, d)
	if err != nil {
		return m, fmt.Errorf("get manifest of %s@%s: %w", reference.FamiliarName(r.name), d, err)
	}
	return m, nil
}

// manifest fetches one manifest. A host that cut it short or sent another one is passed over.
func (r *Repository) manifest(
	ctx context.Context, path string, needs docker.HostCapabilities, want digest.Digest,
) (Manifest, error) {
	for attempt := 0; ; attempt++ {
		m, err := r.manifestOnce(ctx, query{
			method: http.MethodGet, path: path, accept: manifestTypes, needs: needs, first: attempt,
		}, want)
		if err == nil || ctx.Err() != nil {
			return m, err
		}
		var broken *brokenError
		if !errors.As(err, &broken) || attempt+1 >= max(r.client.cfg.Attempts, len(r.hosts)) {
			return m, err
		}
		if err := r.client.pause(ctx, attempt+1, 0); err != nil {
			return m, err
		}
	}
}

// brokenError is an answer that began well.
type brokenError struct{ cause error }

func (e *brokenError) Error() string { return e.cause.Error() }
func (e *brokenError) Unwrap() error { return e.cause }

func (r *Repository) manifestOnce(ctx context.Context, q query, want digest.Digest) (Manifest, error) {
	resp, err := r.do(ctx, q)
	if err != nil {
		return Manifest{}, err
	}
	defer resp.Body.Close()
	if resp.ContentLength > MaxManifest {
		return Manifest{}, lie("manifest of %d bytes, at most %d are allowed", resp.ContentLength, MaxManifest)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxManifest+1))
	if err != nil {
		return Manifest{}, &brokenError{err}
	}
	if len(body) > MaxManifest {
		return Manifest{}, lie("manifest of more than %d bytes", MaxManifest)
	}
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	got := digest.FromBytes(body)
	if want == "" {
		// The header is no proof, but when it contradicts the body, one of them was not meant for us.
		want = digest.Digest(resp.Header.Get("Docker-Content-Digest"))
	}
	if want.Validate() == nil {
		if got = want.Algorithm().FromBytes(body); got != want {
			return Manifest{}, &brokenError{
				lie("%s sent content of digest %s for %s", resp.Request.URL.Host, got, want),
			}
		}
	}
	return Manifest{MediaType: mediaType, Digest: got, Body: body}, nil
}

// Distrust has the host that sent bad content for d passed over, and says whether there is another.
func (r *Repository) Distrust(d digest.Digest) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad[d]+1 >= len(r.hosts) {
		return false
	}
	if r.bad == nil {
		r.bad = map[digest.Digest]int{}
	}
	r.bad[d]++
	return true
}

// Blob reads the content of desc from offset on. It goes on by itself where a connection broke, and fails when there
// are more or fewer bytes than desc says; whether they are the right ones, the reader must see. The bytes at offset are
// asked for by the first Read.
func (r *Repository) Blob(ctx context.Context, desc ocispec.Descriptor, offset int64) io.ReadCloser {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &blob{repo: r, ctx: ctx, desc: desc, offset: offset, first: r.bad[desc.Digest]}
}

// enough bytes since the last break count as progress; a server that gives one at a time would keep us for ever.
const enough = 64 << 10

type blob struct {
	repo   *Repository
	ctx    context.Context
	desc   ocispec.Descriptor
	offset int64

	body    io.ReadCloser
	open    bool // whether the body's end is not known
	breaks  int  // in a row without progress
	since   int64
	whole   bool // the registry refuses to send parts
	total   int  // breaks in all
	first   int  // host to begin with
	verdict error
}

func (b *blob) Close() error {
	if b.body == nil {
		return nil
	}
	defer func() { b.body = nil }()
	return b.body.Close()
}

func (b *blob) Read(p []byte) (int, error) {
	if b.verdict != nil {
		return 0, b.verdict
	}
	n, err := b.read(p)
	if err != nil {
		if !errors.Is(err, io.EOF) {
			err = fmt.Errorf("fetch from %s: %w", reference.Domain(b.repo.name), err)
		}
		b.verdict = err
	}
	return n, err
}

func (b *blob) read(p []byte) (int, error) {
	for {
		left := b.desc.Size - b.offset
		if left == 0 && (b.body == nil || !b.open) {
			return 0, io.EOF
		}
		if b.body == nil {
			if err := b.connect(); err != nil {
				return 0, err
			}
			continue
		}
		if left == 0 {
			var one [1]byte
			if n, _ := b.body.Read(one[:]); n > 0 {
				return 0, lie("content is longer than the %d bytes of its descriptor", b.desc.Size)
			}
			return 0, io.EOF
		}
		n, err := b.body.Read(p[:min(int64(len(p)), left)])
		b.offset += int64(n)
		if n > 0 {
			if b.offset-b.since >= enough {
				b.breaks = 0
			}
			return n, nil // an error will be there again
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("content ended after %d of %d bytes", b.offset, b.desc.Size)
		}
		if err := b.broken(err); err != nil {
			return 0, err
		}
	}
}

// broken lets go of a connection and waits a little, unless there were too many in a row.
func (b *blob) broken(err error) error {
	b.Close()
	if b.ctx.Err() != nil {
		return context.Cause(b.ctx)
	}
	b.breaks++
	b.total++
	b.since = b.offset
	if b.breaks >= b.repo.client.cfg.Attempts {
		return fmt.Errorf("broken off %d times: %w", b.total, err)
	}
	b.repo.client.log.Debug("connection broke and is resumed", "digest", b.desc.Digest, "offset", b.offset,
		"error", err)
	return b.repo.client.pause(b.ctx, b.breaks, 0)
}

// distrust turns to the next host, as long as there is one.
func (b *blob) distrust(resp *http.Response, err error) error {
	resp.Body.Close()
	if b.total++; b.total >= len(b.repo.hosts) {
		return err
	}
	return nil
}

func (b *blob) connect() error {
	q := query{
		method: http.MethodGet, path: "blobs/" + b.desc.Digest.String(), accept: "*/*",
		offset: b.offset, end: b.desc.Size, needs: docker.HostCapabilityPull, first: b.first + b.total,
	}
	if b.whole {
		q.offset = 0
	}
	resp, err := b.repo.do(b.ctx, q)
	var status *statusError
	if errors.As(err, &status) && status.status == http.StatusRequestedRangeNotSatisfiable && !b.whole {
		b.whole = true
		return nil
	}
	if err != nil {
		return err
	}
	left := b.desc.Size - b.offset
	skip := int64(0)
	if b.offset > 0 && resp.StatusCode == http.StatusOK {
		skip = b.offset // it does not know ranges
	}
	if b.offset > 0 && resp.StatusCode == http.StatusPartialContent {
		if cr := resp.Header.Get("Content-Range"); !strings.HasPrefix(cr, fmt.Sprintf("bytes %d-", b.offset)) {
			return b.distrust(resp, lie("content from byte %d was asked for, %q came", b.offset, printable(cr)))
		}
	}
	if resp.ContentLength >= 0 && resp.ContentLength != left+skip {
		return b.distrust(resp, lie("content has %d bytes, its descriptor says %d", resp.ContentLength-skip+b.offset,
			b.desc.Size))
	}
	b.body, b.open = resp.Body, resp.ContentLength < 0
	if _, err := io.CopyN(io.Discard, resp.Body, skip); err != nil {
		return b.broken(err)
	}
	return nil
}

package image

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// TestRefused: images that are not what they say leave nothing behind.
func TestRefused(t *testing.T) {
	other := imagetest.Build(imagetest.Spec{Layers: []files{{{Name: "evil", Body: "evil"}}}})
	for name, c := range map[string]struct {
		change func(img *imagetest.Image, m *ocispec.Manifest)
		fault  func(img *imagetest.Image) func(http.ResponseWriter, *http.Request, http.Handler)
		want   string
	}{
		"other layer": {nil, func(img *imagetest.Image) func(http.ResponseWriter, *http.Request, http.Handler) {
			return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.HasSuffix(r.URL.Path, img.Layers[1].Desc.Digest.Encoded()) {
					_, _ = w.Write(append(make([]byte, len(img.Layers[1].Data)-len("evil")), "evil"...))
					return
				}
				next.ServeHTTP(w, r)
			}
		}, "has another digest"},
		"other config": {nil, func(img *imagetest.Image) func(http.ResponseWriter, *http.Request, http.Handler) {
			return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.HasSuffix(r.URL.Path, strings.TrimPrefix(img.ID, "sha256:")) {
					_, _ = w.Write(make([]byte, len(img.Config)))
					return
				}
				next.ServeHTTP(w, r)
			}
		}, "has another digest"},
		"layer of another image": {func(img *imagetest.Image, m *ocispec.Manifest) {
			img.Layers = append(img.Layers, other.Layers[0])
			m.Layers[1] = other.Layers[0].Desc
		}, nil, "unpacked it has the digest"},
		"size too small": {
			func(_ *imagetest.Image, m *ocispec.Manifest) { m.Layers[1].Size-- }, nil, "its descriptor says",
		},
		"size too big": {
			func(_ *imagetest.Image, m *ocispec.Manifest) { m.Layers[1].Size++ }, nil, "its descriptor says",
		},
		"size negative": {
			func(_ *imagetest.Image, m *ocispec.Manifest) { m.Layers[1].Size = -1 }, nil, "has -1 bytes",
		},
		"size huge": {func(_ *imagetest.Image, m *ocispec.Manifest) { m.Config.Size = 1 << 40 }, nil, "at most"},
		"digest malformed": {
			func(_ *imagetest.Image, m *ocispec.Manifest) { m.Layers[1].Digest = "sha256:../../x" }, nil, "digest",
		},
		"digest unknown": {func(_ *imagetest.Image, m *ocispec.Manifest) {
			m.Layers[1].Digest = "md5:d41d8cd98f00b204e9800998ecf8427e"
		}, nil, "digest"},
		"layer missing": {
			func(_ *imagetest.Image, m *ocispec.Manifest) { m.Layers[1].Digest = digest.FromString("x") }, nil,
			"404 Not Found",
		},
		"a layer fewer": {
			func(_ *imagetest.Image, m *ocispec.Manifest) { m.Layers = m.Layers[:1] }, nil,
			"1 layers, but 2 in the configuration",
		},
		"not a container": {func(_ *imagetest.Image, m *ocispec.Manifest) {
			m.Config.MediaType = "application/vnd.cncf.helm.config.v1+json"
		}, nil, "not of a container"},
		"encrypted": {
			func(_ *imagetest.Image, m *ocispec.Manifest) { m.Layers[0].MediaType += "+encrypted" }, nil, "encrypted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.KeepPartial = time.Nanosecond })
			r := imagetest.NewRegistry(t)
			img := imagetest.Build(twoLayers)
			if c.change != nil {
				m := ocispec.Manifest{
					Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: img.Type,
					Config: ocispec.Descriptor{
						MediaType: ocispec.MediaTypeImageConfig, Digest: digest.Digest(img.ID),
						Size: int64(len(img.Config)),
					},
				}
				for _, l := range img.Layers {
					m.Layers = append(m.Layers, l.Desc)
				}
				c.change(img, &m)
				img.SetManifest(m)
			}
			// Registries check much of what is pushed, so the lies are told by the handler before it.
			name, err := imagetest.Push(r.Host, imagetest.Build(twoLayers))
			if err != nil {
				t.Fatal(err)
			}
			if err := imagetest.PushBlob(r.Host, "hello", other.Layers[0].Data); err != nil {
				t.Fatal(err)
			}
			fault := func(rw http.ResponseWriter, q *http.Request, next http.Handler) {
				if strings.Contains(q.URL.Path, "/manifests/") {
					rw.Header().Set("Content-Type", img.Type)
					_, _ = rw.Write(img.Manifest)
					return
				}
				next.ServeHTTP(rw, q)
			}
			if c.fault != nil {
				fault = c.fault(img)
			}
			r.Fault(fault)
			if _, err := w.Pull(t.Context(), name, nil, nil); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
			if err := errors.Join(w.Store.Close(), w.Collect(t.Context())); err != nil {
				t.Fatal(err)
			}
			if left := w.left(t); left != "" || len(w.List()) != 0 {
				t.Errorf("left:\n%s", left)
			}
		})
	}
}

// TestBadMirror: what a mirror has under a digest must have that digest; else the registry itself is asked.
func TestBadMirror(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, func(c *Config) { c.RegistryConfigDir = dir })
	bad, names := served(t, twoLayers)
	good, _ := served(t, twoLayers)
	bad.Fault(func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
		for _, l := range append(imagetest.Build(twoLayers).Layers,
			imagetest.Layer{Data: imagetest.Build(twoLayers).Config}) {
			if strings.HasSuffix(r.URL.Path, digest.FromBytes(l.Data).Encoded()) {
				_, _ = rw.Write(make([]byte, len(l.Data)))
				return
			}
		}
		next.ServeHTTP(rw, r)
	})
	hosts := fmt.Sprintf("server = 'http://%s'\n[host.'http://%s']\n", good.Host, bad.Host)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "registry.test"), 0o755),
		os.WriteFile(filepath.Join(dir, "registry.test", "hosts.toml"), []byte(hosts), 0o600)); err != nil {
		t.Fatal(err)
	}
	img := mustPull(t, w, "registry.test"+strings.TrimPrefix(names[0], bad.Host))
	if img.Tags[0] != "registry.test/hello:v1" || w.show(t, img, "etc/a") != "two" {
		t.Errorf("%+v", img)
	}
}

func TestNames(t *testing.T) {
	w := newWorld(t)
	r := imagetest.NewRegistry(t)
	for _, bad := range []string{"", "UPPER", "a b", "x:y:z", r.Host + "/x@sha256:abc", "-", "http://x/y"} {
		if _, err := w.Pull(t.Context(), bad, nil, nil); err == nil ||
			!strings.Contains(err.Error(), "read image name") {
			t.Errorf("%q: error is %v", bad, err)
		}
	}
}

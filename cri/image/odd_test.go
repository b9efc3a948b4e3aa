package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// TestOddImages: what builders make of layers, though nobody would by hand.
func TestOddImages(t *testing.T) {
	many := make([]files, 127)
	for i := range many {
		many[i] = files{{Name: fmt.Sprint("f", i), Body: fmt.Sprint(i)}, {Name: "last", Body: fmt.Sprint(i)}}
	}
	same := files{{Name: "a", Body: "a"}}
	for name, c := range map[string]struct {
		layers     []files
		file, want string
	}{
		"many":          {many, "last", "126"},
		"the first":     {many, "f0", "0"},
		"the same once": {[]files{same, same}, "a", "a"},
		"between":       {[]files{same, {{Name: "a", Body: "b"}}, same, {}, {{Name: ".wh.b"}}}, "a", "a"},
		"empty":         {[]files{{}, same, {}, {}}, "a", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			_, names := served(t, imagetest.Spec{Name: "odd:v1", Layers: c.layers})
			img := mustPull(t, w, names[0])
			if got := w.show(t, img, c.file); got != c.want {
				t.Errorf("%s is %q", c.file, got)
			}
			if err := w.Remove(t.Context(), img.ID); err != nil || strings.Contains(w.left(t), "layer") {
				t.Errorf("%v, left:\n%s", err, w.left(t))
			}
		})
	}
	w := newWorld(t)
	_, names := served(t, imagetest.Spec{Name: "scratch:v1"})
	if img := mustPull(t, w, names[0]); img.TopLayer != "" || len(w.List()) != 1 {
		t.Errorf("without any layer: %+v", img)
	}
}

// TestSchema1: what registries of long ago had is refused by its name.
func TestSchema1(t *testing.T) {
	w := newWorld(t)
	r, names := served(t, twoLayers)
	r.Fault(func(rw http.ResponseWriter, _ *http.Request, _ http.Handler) {
		rw.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v1+prettyjws")
		_, _ = rw.Write([]byte(`{"schemaVersion": 1, "name": "hello", "fsLayers": [{"blobSum": "sha256:00"}],
			"history": []}`))
	})
	if _, err := w.Pull(t.Context(), names[0], nil, nil); err == nil || !strings.Contains(err.Error(), "schema 1") {
		t.Errorf("got %v", err)
	}
}

// TestNotDistributable: layers of that kind are like any other where the registry has them, and are not fetched from
// anywhere else.
func TestNotDistributable(t *testing.T) {
	for _, kind := range []string{
		"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
		"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
	} {
		for _, there := range []bool{true, false} {
			w := newWorld(t)
			r, names := served(t, twoLayers)
			img := imagetest.Build(twoLayers)
			var m ocispec.Manifest
			if err := json.Unmarshal(img.Manifest, &m); err != nil {
				t.Fatal(err)
			}
			m.Layers[0].MediaType, m.Layers[0].URLs = kind, []string{"http://" + r.Host + "/secret"}
			img.SetManifest(m)
			r.Fault(func(rw http.ResponseWriter, q *http.Request, next http.Handler) {
				switch {
				case strings.Contains(q.URL.Path, "/manifests/"):
					rw.Header().Set("Content-Type", img.Type)
					_, _ = rw.Write(img.Manifest)
				case strings.Contains(q.URL.Path, "secret"):
					t.Error("an address was asked that only the image names")
				case !there && strings.HasSuffix(q.URL.Path, m.Layers[0].Digest.Encoded()):
					rw.WriteHeader(http.StatusNotFound)
				default:
					next.ServeHTTP(rw, q)
				}
			})
			_, err := w.Pull(t.Context(), names[0], nil, nil)
			if there && err != nil || !there &&
				(err == nil || !strings.Contains(err.Error(), "/secret: push the image with all of its layers")) {
				t.Errorf("%s, %v: got %v", kind, there, err)
			}
		}
	}
}

// TestModules: one name may stand for a program and for a module, and who asks says which.
func TestModules(t *testing.T) {
	r := imagetest.NewRegistry(t)
	var images []*imagetest.Image
	for _, p := range []ocispec.Platform{
		{OS: "linux", Architecture: "amd64"},
		{OS: "wasi", Architecture: "wasm"},
		{OS: "wasip1", Architecture: "wasm"},
	} {
		images = append(images, imagetest.Build(imagetest.Spec{
			Platform: &p, Layers: []files{{{Name: "p", Body: p.OS}}},
		}))
	}
	both, _, err := imagetest.PushIndex(r.Host, "both:v1", images...)
	if err != nil {
		t.Fatal(err)
	}
	plain, _, err := imagetest.PushIndex(r.Host, "plain:v1", images[0])
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *Config) { c.Platform = &ocispec.Platform{OS: "linux", Architecture: "amd64"} })
	mustPull(t, w, both)
	if got, err := w.GetModule(both); !errors.Is(err, ErrNotFound) {
		t.Errorf("the program is taken for the module %s, %v", got.ID, err)
	}
	for _, tt := range []struct {
		name, want string
		module     bool
	}{
		{both, "linux", false},
		{both, "wasip1", true},
		{both, "wasip1", true},
		{both, "linux", false},
		{plain, "linux", true},
	} {
		pull, get, other := w.Pull, w.Get, w.GetModule
		if tt.module {
			pull, get, other = w.PullModule, w.GetModule, w.Get
		}
		img, err := pull(t.Context(), tt.name, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.show(t, img, "p"); got != tt.want {
			t.Errorf("%+v: got %s", tt, got)
		}
		if got, err := get(tt.name); err != nil || got.ID != img.ID {
			t.Errorf("%+v: the name is that of %s, %v", tt, got.ID, err)
		}
		if got, err := other(tt.name); tt.name == both && len(w.List()) == 2 && (err != nil || got.ID == img.ID) {
			t.Errorf("%+v: for the other kind the name is that of %s, %v", tt, got.ID, err)
		}
	}
	if l := w.List(); len(l) != 2 {
		t.Errorf("%d images", len(l))
	}
	if err := w.RemoveModule(t.Context(), both); err != nil {
		t.Fatal(err)
	}
	if l := w.List(); len(l) != 1 || l[0].Config.OS != "linux" {
		t.Errorf("after the module was removed there is %v", l)
	}
}

// TestAttestations: an index with what builders attest beside an image is that image.
func TestAttestations(t *testing.T) {
	r := imagetest.NewRegistry(t)
	real := imagetest.Build(imagetest.Spec{Layers: []files{base}})
	attested := imagetest.Build(imagetest.Spec{
		Platform: &ocispec.Platform{OS: "unknown", Architecture: "unknown"},
		Layers:   []files{{{Name: "statement", Body: "{}"}}},
	})
	name, index, err := imagetest.PushIndex(r.Host, "attested:v1", attested, real)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	for _, ref := range []string{
		name, r.Host + "/attested@" + index.String(),
		r.Host + "/attested:v1@" + index.String(),
	} {
		if img := mustPull(t, w, ref); img.ID != real.ID {
			t.Errorf("%s is %s", ref, img.ID)
		}
	}
	if _, err := w.Pull(t.Context(), r.Host+"/attested@"+digest.FromString("x").String(), nil, nil); err == nil {
		t.Error("a digest that nobody has is there")
	}
}

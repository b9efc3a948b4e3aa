package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// unpackTar returns the entries of an archive, to make another of.
func unpackTar(t testing.TB, data []byte) files {
	t.Helper()
	var all files
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, imagetest.File{Name: h.Name, Type: h.Typeflag, Body: string(body), Link: h.Linkname})
	}
}

func TestImport(t *testing.T) {
	one := imagetest.Build(twoLayers)
	spec := twoLayers
	spec.Packing, spec.Name = imagetest.Zstd, "example.org/x/y:z"
	other := imagetest.Build(spec)
	docker, oci := one.DockerArchive(other), one.OCIArchive(other)
	for name, data := range map[string][]byte{
		"docker": docker, "oci": oci,
		"docker gz": imagetest.Pack(imagetest.Gzip, docker), "oci gz": imagetest.Pack(imagetest.Gzip, oci),
		"docker zst": imagetest.Pack(imagetest.Zstd, docker), "oci zst": imagetest.Pack(imagetest.Zstd, oci),
		"both tables": imagetest.Tar(append(unpackTar(t, oci), unpackTar(t, docker)...)),
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprint(name, stream), func(t *testing.T) {
				w := newWorld(t)
				var r io.Reader = bytes.NewReader(data)
				if !stream {
					file := filepath.Join(t.TempDir(), "a.tar")
					if err := os.WriteFile(file, data, 0o600); err != nil {
						t.Fatal(err)
					}
					f, err := os.Open(file)
					if err != nil {
						t.Fatal(err)
					}
					defer f.Close()
					r = f
				}
				told := map[Phase]bool{}
				images, err := w.Import(t.Context(), r, func(p Progress) { told[p.Phase] = true })
				if err != nil {
					t.Fatal(err)
				}
				if !told[Done] || !told[Resolving] {
					t.Errorf("told of %v", told)
				}
				if images[0].ID != one.ID || w.show(t, images[0], "etc/a") != "two" {
					t.Errorf("%+v", images)
				}
				for _, ref := range []string{"hello:v1", "docker.io/library/hello:v1", "example.org/x/y:z", one.ID} {
					if img, err := w.Get(ref); err != nil || img.ID != one.ID { // both have the same configuration
						t.Errorf("%s: %v, %v", ref, img.ID, err)
					}
				}
				if hasDigests := strings.Contains(name, "oci"); hasDigests && !slices.Contains(images[0].Digests, "docker.io/library/hello@"+one.Digest.String()) {
					t.Errorf("digests: %q", images[0].Digests)
				}
				if strings.Contains(w.left(t), "ingest") {
					t.Errorf("left:\n%s", w.left(t))
				}
			})
		}
	}
}

func TestImportRefused(t *testing.T) {
	one := imagetest.Build(twoLayers)
	docker, oci := unpackTar(t, one.DockerArchive()), unpackTar(t, one.OCIArchive())
	layer := "blobs/sha256/" + one.Layers[1].Desc.Digest.Encoded()
	change := func(all files, name string, f func(*imagetest.File)) []byte {
		all = slices.Clone(all)
		for i := range all {
			if all[i].Name == name {
				f(&all[i])
			}
		}
		return imagetest.Tar(all)
	}
	without := func(all files, name string) []byte {
		return imagetest.Tar(slices.DeleteFunc(slices.Clone(all), func(f imagetest.File) bool { return f.Name == name }))
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":              {nil, "archive without images"},
		"noise":                {bytes.Repeat([]byte("noise"), 1000), "read archive"},
		"empty archive":        {imagetest.Tar(nil), "archive without images"},
		"cut":                  {one.DockerArchive()[:2000], "read archive"},
		"cut gzip":             {imagetest.Pack(imagetest.Gzip, one.DockerArchive())[:500], "read archive"},
		"other layer, oci":     {change(oci, layer, func(f *imagetest.File) { f.Body = strings.Repeat("x", len(f.Body)) }), "has another digest"},
		"longer layer, oci":    {change(oci, layer, func(f *imagetest.File) { f.Body += "x" }), "its descriptor says"},
		"other config, oci":    {change(oci, "blobs/sha256/"+one.ID[7:], func(f *imagetest.File) { f.Body = strings.Repeat(" ", len(f.Body)) }), "has another digest"},
		"other manifest, oci":  {change(oci, "blobs/sha256/"+one.Digest.Encoded(), func(f *imagetest.File) { f.Body = strings.Repeat(" ", len(f.Body)) }), "has another digest"},
		"other layer, docker":  {change(docker, one.Layers[1].DiffID.Encoded()+"/layer.tar", func(f *imagetest.File) { f.Body = string(one.Layers[0].Tar) }), "unpacked it has the digest"},
		"other config, docker": {change(docker, one.ID[7:]+".json", func(f *imagetest.File) { f.Body += " " }), "has another digest"},
		"no layer, oci":        {without(oci, layer), "archive without \"blobs"},
		"no layer, docker":     {without(docker, one.Layers[0].DiffID.Encoded()+"/layer.tar"), "archive without"},
		"no config":            {without(docker, one.ID[7:]+".json"), "archive without"},
		"links in a circle": {
			change(docker, one.Layers[1].DiffID.Encoded()+"/layer.tar", func(f *imagetest.File) { f.Type, f.Body, f.Link = tar.TypeSymlink, "", "../"+f.Name }),
			"archive without",
		},
		"bad name":             {change(docker, "manifest.json", func(f *imagetest.File) { f.Body = strings.Replace(f.Body, "hello:v1", "../../HELLO", 1) }), "read image name"},
		"table of contents":    {imagetest.Tar(files{{Name: "manifest.json", Body: "[1]"}}), "read manifest.json"},
		"index":                {imagetest.Tar(files{{Name: "index.json", Body: `{"schemaVersion":2,"manifests":[{"digest":"sha256:../../etc/passwd","size":1}]}`}}), "digest"},
		"not an index":         {imagetest.Tar(files{{Name: "index.json", Body: string(one.Manifest)}}), "not an index"},
		"config out of it":     {imagetest.Tar(files{{Name: "manifest.json", Body: `[{"Config":"/etc/passwd"}]`}}), "archive without \"/etc/passwd\""},
		"config through link":  {imagetest.Tar(files{{Name: "c", Type: tar.TypeSymlink, Link: "/etc/passwd"}, {Name: "manifest.json", Body: `[{"Config":"c"}]`}}), "archive without"},
		"for another machine":  {imagetest.Build(imagetest.Spec{Name: "x:y", Platform: &ocispec.Platform{OS: "linux", Architecture: "s390x"}}).OCIArchive(), "but for linux/s390x"},
		"index in itself, oci": {selfIndex(), "has another digest"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.KeepPartial = time.Nanosecond })
			if _, err := w.Import(t.Context(), bytes.NewReader(c.data), nil); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
			if err := errors.Join(w.Store.Close(), w.Collect(t.Context())); err != nil {
				t.Fatal(err)
			}
			if left := w.left(t); left != "" {
				t.Errorf("left:\n%s", left)
			}
		})
	}
}

func selfIndex() []byte {
	d := digest.FromString("itself")
	index := fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"%s","size":300}]}`, d)
	index += strings.Repeat(" ", 300-len(index))
	return imagetest.Tar(files{{Name: "index.json", Body: index}, {Name: "blobs/sha256/" + d.Encoded(), Body: index}})
}

// TestImportOdd: what other tools write.
func TestImportOdd(t *testing.T) {
	one := imagetest.Build(twoLayers)
	docker := unpackTar(t, one.DockerArchive())
	// The table first, and the lower layer as a link to where another image has it.
	slices.Reverse(docker)
	name := one.Layers[0].DiffID.Encoded() + "/layer.tar"
	for i := range docker {
		if docker[i].Name == name {
			docker[i].Name = "elsewhere/layer.tar"
		}
	}
	docker = append(docker, imagetest.File{Name: name, Type: tar.TypeSymlink, Link: "../elsewhere/layer.tar"})
	// Of two platforms, in an index of its own; named with a tag only.
	other := imagetest.Build(imagetest.Spec{Platform: &ocispec.Platform{OS: "linux", Architecture: "s390x"}, Layers: []files{base}})
	multi, err := json.Marshal(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{other.Desc(), one.Desc()}})
	if err != nil {
		t.Fatal(err)
	}
	index, err := json.Marshal(ocispec.Index{Manifests: []ocispec.Descriptor{{
		MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(multi), Size: int64(len(multi)), Annotations: map[string]string{ocispec.AnnotationRefName: "latest"},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	nested := slices.DeleteFunc(unpackTar(t, one.OCIArchive(other)), func(f imagetest.File) bool { return f.Name == "index.json" })
	nested = append(nested, imagetest.File{Name: "./index.json", Body: string(index)}, imagetest.File{Name: "blobs/sha256/" + digest.FromBytes(multi).Encoded(), Body: string(multi)})
	for what, all := range map[string]files{"docker": docker, "nested": nested} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			images, err := w.Import(t.Context(), bytes.NewReader(imagetest.Tar(all)), nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(images) != 1 || images[0].ID != one.ID || what == "nested" && len(images[0].Names()) != 0 {
				t.Errorf("%+v", images)
			}
		})
	}
}

func TestImportArchives(t *testing.T) {
	dir := t.TempDir()
	var named []string
	w := newWorld(t, func(c *Config) {
		c.Archives, c.Named = dir, func(names []string) { named = append(named, names...) }
	})
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spec := twoLayers
	spec.Name, spec.Layers = "other:v1", []files{base}
	write("a.tar", imagetest.Build(twoLayers).OCIArchive())
	write("b.tar.gz", imagetest.Pack(imagetest.Gzip, imagetest.Build(spec).DockerArchive()))
	write("README", []byte("not an archive"))
	write(".hidden.tar", []byte("not finished"))
	imported := func() (names []string) {
		for _, i := range w.List() {
			names = append(names, i.Tags...)
		}
		slices.Sort(names)
		return names
	}
	if err := w.ImportArchives(t.Context(), map[string]bool{}); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(imported()); got != "[docker.io/library/hello:v1 docker.io/library/other:v1]" {
		t.Errorf("imported %s", got)
	}
	for _, name := range imported() {
		if !slices.Contains(named, name) {
			t.Errorf("%s was not told of: %q", name, named)
		}
	}
	// Once more nothing happens, unless it is gone or has changed.
	at := w.List()[0].PulledAt
	if err := w.ImportArchives(t.Context(), map[string]bool{}); err != nil || !w.List()[0].PulledAt.Equal(at) {
		t.Errorf("imported again: %v", err)
	}
	if err := w.Remove(t.Context(), "hello:v1"); err != nil {
		t.Fatal(err)
	}
	spec.Layers = append(spec.Layers, top)
	write("b.tar.gz", imagetest.Build(spec).DockerArchive())
	write("c.tar", []byte("broken"))
	if err := w.ImportArchives(t.Context(), map[string]bool{}); err == nil || !strings.Contains(err.Error(), "c.tar") || strings.Contains(err.Error(), "a.tar") {
		t.Errorf("error is %v", err)
	}
	if got := fmt.Sprint(imported()); got != "[docker.io/library/hello:v1 docker.io/library/other:v1]" {
		t.Errorf("imported %s", got)
	}
	w = newWorld(t, func(c *Config) { c.Archives = filepath.Join(dir, "absent") })
	if err := w.ImportArchives(t.Context(), map[string]bool{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
}

func FuzzDocuments(f *testing.F) {
	one := imagetest.Build(twoLayers)
	f.Add(ocispec.MediaTypeImageManifest, one.Manifest)
	f.Add("", one.Config)
	f.Add("", []byte(`{"schemaVersion":2,"manifests":[{"digest":"sha256:x","platform":{"os":"linux","architecture":"arm","variant":"v7"}}]}`))
	f.Fuzz(func(t *testing.T, mediaType string, body []byte) {
		doc, err := parseDocument(mediaType, body)
		if err == nil && doc.isIndex() {
			_, _ = choose(*doc.Manifests, platforms.Default())
		}
		if err == nil && !doc.isIndex() {
			for _, l := range append(doc.Layers, *doc.Config) {
				if l.Size < 0 || l.Digest.Validate() != nil {
					t.Errorf("%+v", l)
				}
			}
		}
		_, chain, err := parseConfig(body, 2)
		if err == nil && len(chain) != 2 {
			t.Errorf("%q", chain)
		}
	})
}

func FuzzImport(f *testing.F) {
	one := imagetest.Build(twoLayers)
	f.Add(one.DockerArchive())
	f.Add(one.OCIArchive())
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := openArchive(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		found, err := a.images(platforms.Default())
		if err != nil {
			return
		}
		for _, i := range found {
			_, _ = archivedNames(i)
			for j, sec := range i.sections {
				if _, err := io.Copy(io.Discard, a.open(sec, i.layers[j], func(int) {})); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

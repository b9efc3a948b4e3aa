// Package imagetest makes images for tests: archives of docker save and in the OCI layout, and images in a registry
// that runs in the test's own process.
package imagetest

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// File is one entry of a layer. The zero Type is a regular file, or a directory when Name ends with a slash.
type File struct {
	Name     string
	Type     byte
	Body     string
	Link     string
	Mode     int64 // 0 = 0644, for directories 0755
	UID, GID int
	ModTime  time.Time
	Major    int64
	Minor    int64
	PAX      map[string]string // "SCHILY.xattr.<name>" for xattrs
}

// Packing of layers.
type Packing string

// How layers are packed.
const (
	Gzip  Packing = "gzip"
	Zstd  Packing = "zstd"
	Plain Packing = "plain"
)

// Spec says what an image is like. Name is repository:tag without a registry.
type Spec struct {
	Name     string
	Layers   [][]File
	Tars     [][]byte // layers that are archives already, on top of Layers
	Config   ocispec.ImageConfig
	Packing  Packing           // "" = gzip
	Docker   bool              // Docker's media types instead of OCI's
	Platform *ocispec.Platform // nil = this machine's
}

// Layer of an image.
type Layer struct {
	Desc   ocispec.Descriptor
	Data   []byte // packed
	Tar    []byte
	DiffID digest.Digest
}

// Image is what Build made.
type Image struct {
	Name     string
	ID       string // digest of Config
	Digest   digest.Digest
	Type     string // media type of Manifest
	Manifest []byte
	Config   []byte
	Layers   []Layer
	Platform ocispec.Platform
}

// Tar makes an archive of files.
func Tar(files []File) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{
			Name: f.Name, Typeflag: f.Type, Linkname: f.Link, Mode: f.Mode, Uid: f.UID, Gid: f.GID, ModTime: f.ModTime,
			Devmajor: f.Major, Devminor: f.Minor, PAXRecords: f.PAX, Size: int64(len(f.Body)),
		}
		if f.Type == 0 {
			h.Typeflag = tar.TypeReg
			if strings.HasSuffix(f.Name, "/") {
				h.Typeflag = tar.TypeDir
			}
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1700000000, 0)
		}
		if len(f.PAX) > 0 {
			h.Format = tar.FormatPAX
		}
		must(w.WriteHeader(h))
		if f.Body != "" {
			_, err := io.WriteString(w, f.Body)
			must(err)
		}
	}
	must(w.Close())
	return b.Bytes()
}

// Pack compresses.
func Pack(p Packing, data []byte) []byte {
	var b bytes.Buffer
	switch p {
	case Plain:
		return data
	case Zstd:
		w, err := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1))
		must(err)
		_, err = w.Write(data)
		must(err)
		must(w.Close())
	default:
		w := gzip.NewWriter(&b)
		_, err := w.Write(data)
		must(err)
		must(w.Close())
	}
	return b.Bytes()
}

// Build makes an image. It panics when it cannot, since a test asked for it.
func Build(s Spec) *Image {
	img := &Image{
		Name: s.Name, Type: ocispec.MediaTypeImageManifest,
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
	}
	if s.Platform != nil {
		img.Platform = *s.Platform
	}
	tars := make([][]byte, 0, len(s.Layers)+len(s.Tars))
	for _, l := range s.Layers {
		tars = append(tars, Tar(l))
	}
	config := ocispec.Image{
		Platform: img.Platform, Config: s.Config, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}},
	}
	packing := cmp.Or(s.Packing, Gzip)
	layerType := map[Packing]string{
		Gzip: ocispec.MediaTypeImageLayerGzip, Zstd: ocispec.MediaTypeImageLayerZstd,
		Plain: ocispec.MediaTypeImageLayer,
	}[packing]
	configType := ocispec.MediaTypeImageConfig
	if s.Docker {
		layerType = "application/vnd.docker.image.rootfs.diff.tar.gzip"
		configType = "application/vnd.docker.container.image.v1+json"
		img.Type = "application/vnd.docker.distribution.manifest.v2+json"
	}
	descs := []ocispec.Descriptor{}
	for _, t := range append(tars, s.Tars...) {
		l := Layer{Tar: t, Data: Pack(packing, t), DiffID: digest.FromBytes(t)}
		l.Desc = describe(layerType, l.Data)
		img.Layers = append(img.Layers, l)
		descs = append(descs, l.Desc)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.DiffID)
	}
	img.Config = encode(config)
	img.ID = digest.FromBytes(img.Config).String()
	img.SetManifest(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: img.Type, Config: describe(configType, img.Config),
		Layers: descs,
	})
	return img
}

// SetManifest replaces the manifest, for images that lie.
func (i *Image) SetManifest(m any) {
	i.Manifest = encode(m)
	i.Digest = digest.FromBytes(i.Manifest)
}

// Desc describes the manifest.
func (i *Image) Desc() ocispec.Descriptor {
	d := describe(i.Type, i.Manifest)
	p := i.Platform
	d.Platform = &p
	return d
}

func describe(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	must(err)
	return b
}

func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("imagetest: %v", err))
	}
}

// DockerArchive is the image as docker save writes it; several images in one when others are given.
func (i *Image) DockerArchive(others ...*Image) []byte {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var files []File
	var manifest []entry
	seen := map[string]bool{}
	add := func(name string, data []byte) string {
		if !seen[name] {
			seen[name] = true
			files = append(files, File{Name: name, Body: string(data)})
		}
		return name
	}
	for _, img := range append([]*Image{i}, others...) {
		e := entry{Config: add(strings.TrimPrefix(img.ID, "sha256:")+".json", img.Config), Layers: []string{}}
		if img.Name != "" {
			e.RepoTags = []string{img.Name}
		}
		for _, l := range img.Layers {
			e.Layers = append(e.Layers, add(l.DiffID.Encoded()+"/layer.tar", l.Tar))
		}
		manifest = append(manifest, e)
	}
	return Tar(append(files, File{Name: "manifest.json", Body: string(encode(manifest))}))
}

// OCIArchive is the image as an archive in the OCI layout; several images in one when others are given.
func (i *Image) OCIArchive(others ...*Image) []byte {
	files := []File{{Name: "oci-layout", Body: `{"imageLayoutVersion":"1.0.0"}`}, {Name: "blobs/sha256/"}}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	add := func(data []byte) {
		files = append(files, File{Name: "blobs/sha256/" + digest.FromBytes(data).Encoded(), Body: string(data)})
	}
	for _, img := range append([]*Image{i}, others...) {
		for _, l := range img.Layers {
			add(l.Data)
		}
		add(img.Config)
		add(img.Manifest)
		d := img.Desc()
		if img.Name != "" {
			d.Annotations = map[string]string{"io.containerd.image.name": img.Name}
		}
		index.Manifests = append(index.Manifests, d)
	}
	return Tar(append(files, File{Name: "index.json", Body: string(encode(index))}))
}

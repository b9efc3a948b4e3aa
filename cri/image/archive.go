package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"strings"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-node/berth/cri/image/registry"
)

const (
	maxEntries = 100_000
	maxHops    = 8
)

// archive is a tar file whose entries are found by name. Nothing of it is ever written under its name.
type archive struct {
	file    io.ReaderAt
	entries map[string]section
}

// section is where the content of an entry is, or, where link is set, what other entry has it.
type section struct {
	offset, size int64
	link         string
}

// openArchive reads the table of contents of an archive of size bytes.
func openArchive(file io.ReaderAt, size int64) (*archive, error) {
	a := &archive{file: file, entries: map[string]section{}}
	r := io.NewSectionReader(file, 0, size)
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return nil, fmt.Errorf("read archive: %w", err)
		}
		if len(a.entries) == maxEntries {
			return nil, invalid("archive of more than %d files", maxEntries)
		}
		name := path.Clean("/" + h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			// The reader takes no more than the header, so the content begins where it stands. A file that would not
			// fit is cut off, which the next header would find out too late.
			at, err := r.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			if h.Size > size-at {
				return nil, fmt.Errorf("read archive: %w", io.ErrUnexpectedEOF)
			}
			if !sparse(h) {
				a.entries[name] = section{offset: at, size: h.Size}
			}
		case tar.TypeSymlink:
			target := h.Linkname
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(name), target)
			}
			a.entries[name] = section{link: path.Clean("/" + target)}
		case tar.TypeLink:
			a.entries[name] = section{link: path.Clean("/" + h.Linkname)}
		}
	}
}

func sparse(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// find follows links, by which docker save says that two images share a layer.
func (a *archive) find(name string) (section, error) {
	at := path.Clean("/" + name)
	for range maxHops {
		s, ok := a.entries[at]
		if ok && s.link == "" {
			return s, nil
		}
		if !ok {
			break
		}
		at = s.link
	}
	return section{}, invalid("archive without %q", name)
}

func (a *archive) has(name string) bool {
	_, err := a.find(name)
	return err == nil
}

// read returns a small entry.
func (a *archive) read(name string, limit int64) ([]byte, error) {
	s, err := a.find(name)
	if err != nil {
		return nil, err
	}
	if s.size > limit {
		return nil, invalid("%q has %d bytes, at most %d are allowed", name, s.size, limit)
	}
	b := make([]byte, s.size)
	if _, err := a.file.ReadAt(b, s.offset); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	return b, nil
}

// blob returns small content of an OCI layout.
func (a *archive) blob(d ocispec.Descriptor, limit int64) ([]byte, error) {
	if err := checkDescriptor(d, limit); err != nil {
		return nil, err
	}
	b, err := a.read(blobName(d.Digest), limit)
	if err != nil {
		return nil, err
	}
	if got := d.Digest.Algorithm().FromBytes(b); got != d.Digest {
		return nil, invalid("content %s of the archive has another digest: %s", d.Digest, got)
	}
	return b, nil
}

func blobName(d digest.Digest) string { return "blobs/" + d.Algorithm().String() + "/" + d.Encoded() }

// open begins to read a layer.
func (a *archive) open(s section, desc ocispec.Descriptor, count func(int)) packed {
	e := &entry{r: io.NewSectionReader(a.file, s.offset, s.size), count: count}
	if desc.MediaType != "" {
		e.want, e.hash = desc.Digest, desc.Digest.Algorithm().Hash()
	}
	return e
}

// entry is a layer in an archive.
type entry struct {
	r      io.Reader
	count  func(int)
	want   digest.Digest
	hash   hash.Hash // nil where the archive has no digest of it
	failed error
}

func (e *entry) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if e.hash != nil {
		e.hash.Write(p[:n])
	}
	if n > 0 {
		e.count(n)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		e.failed = err
	}
	return n, err
}

func (e *entry) verify() error {
	if e.hash != nil {
		if got := digest.NewDigest(e.want.Algorithm(), e.hash); got != e.want {
			return invalid("content %s of the archive has another digest: %s", e.want, got)
		}
	}
	return nil
}

func (e *entry) Close() error   { return nil }
func (e *entry) again() bool    { return false }
func (e *entry) discard() error { return nil }
func (e *entry) trouble() error { return e.failed }
func (e *entry) keeps() int64   { return 0 }

// archived is an image in an archive. Where it has no manifest, its layers have no descriptors of media type either.
type archived struct {
	names    []string
	target   digest.Digest // what its names point to in the archive
	manifest digest.Digest
	keep     map[digest.Digest][]byte
	id       digest.Digest
	config   []byte
	layers   []ocispec.Descriptor
	sections []section
}

// images lists what is in the archive for this machine. An archive of newer Dockers has both tables of contents: then
// the names come from the one, and the manifests from the other.
func (a *archive) images(machine platforms.MatchComparer) ([]archived, error) {
	var all []archived
	var err error
	if a.has("index.json") {
		if all, err = a.ociImages(machine); err != nil {
			return nil, err
		}
	}
	if a.has("manifest.json") {
		docker, err := a.dockerImages()
		if err != nil {
			return nil, err
		}
		all = merge(all, docker)
	}
	if len(all) == 0 {
		return nil, invalid("archive without images: it has neither a manifest.json nor an index.json with some")
	}
	return all, nil
}

func merge(all, docker []archived) []archived {
	for _, d := range docker {
		known := false
		for i := range all {
			if all[i].id == d.id {
				known = true
				all[i].names = append(all[i].names, d.names...)
			}
		}
		if !known {
			all = append(all, d)
		}
	}
	return all
}

// dockerImages reads the table of contents of docker save.
func (a *archive) dockerImages() ([]archived, error) {
	body, err := a.read("manifest.json", registry.MaxManifest)
	if err != nil {
		return nil, err
	}
	var entries []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(body, &entries); err != nil {
		return nil, invalid("read manifest.json: %v", err)
	}
	var all []archived
	for _, e := range entries {
		img := archived{names: e.RepoTags, keep: map[digest.Digest][]byte{}}
		if img.config, err = a.read(e.Config, maxConfig); err != nil {
			return nil, err
		}
		img.id = digest.FromBytes(img.config)
		img.keep[img.id] = img.config
		// The file is named after its digest, in one way or another.
		hex := strings.TrimPrefix(strings.TrimSuffix(path.Base(e.Config), ".json"), "sha256:")
		if named := digest.NewDigestFromEncoded(digest.SHA256, hex); named.Validate() == nil && named != img.id {
			return nil, invalid("configuration %q of the archive has another digest: %s", e.Config, img.id)
		}
		if len(e.Layers) > maxLayers {
			return nil, invalid("%d layers, at most %d can be stacked", len(e.Layers), maxLayers)
		}
		for _, l := range e.Layers {
			s, err := a.find(l)
			if err != nil {
				return nil, err
			}
			img.sections = append(img.sections, s)
			img.layers = append(img.layers, ocispec.Descriptor{Size: s.size})
		}
		all = append(all, img)
	}
	return all, nil
}

// ociImages reads the index of an OCI layout. Of manifests with the same name, the one for this machine is meant; those
// without a name are images of their own.
func (a *archive) ociImages(machine platforms.MatchComparer) ([]archived, error) {
	body, err := a.read("index.json", registry.MaxManifest)
	if err != nil {
		return nil, err
	}
	doc, err := parseDocument("", body)
	if err != nil {
		return nil, err
	}
	if !doc.isIndex() {
		return nil, invalid("index.json is not an index")
	}
	named := map[string][]ocispec.Descriptor{}
	var order []string
	for i, m := range *doc.Manifests {
		name := archiveName(m)
		key := name
		if name == "" {
			key = fmt.Sprint(i)
		}
		if _, ok := named[key]; !ok {
			order = append(order, key)
		}
		named[key] = append(named[key], m)
	}
	var all []archived
	var other error
	for _, key := range order {
		img, err := a.ociImage(named[key], machine)
		if errors.Is(err, errPlatform) {
			other = err
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, img)
	}
	if len(all) == 0 {
		return nil, other
	}
	return all, nil
}

func (a *archive) ociImage(same []ocispec.Descriptor, machine platforms.MatchComparer) (archived, error) {
	img := archived{keep: map[digest.Digest][]byte{}}
	d := same[0]
	if len(same) > 1 || d.Platform != nil {
		var err error
		if d, err = choose(same, machine); err != nil {
			return img, err
		}
	}
	if name := archiveName(d); name != "" {
		img.names = []string{name}
	}
	img.target = d.Digest
	for range maxNested {
		body, err := a.blob(d, registry.MaxManifest)
		if err != nil {
			return img, err
		}
		img.keep[d.Digest] = body
		doc, err := parseDocument(d.MediaType, body)
		if err != nil {
			return img, err
		}
		if doc.isIndex() {
			if d, err = choose(*doc.Manifests, machine); err != nil {
				return img, err
			}
			continue
		}
		img.manifest, img.id, img.layers = d.Digest, doc.Config.Digest, doc.Layers
		if img.config, err = a.blob(*doc.Config, maxConfig); err != nil {
			return img, err
		}
		img.keep[img.id] = img.config
		for _, l := range doc.Layers {
			sec, err := a.find(blobName(l.Digest))
			if err != nil {
				return img, err
			}
			if sec.size != l.Size {
				return img, invalid("content %s of the archive has %d bytes, its descriptor says %d", l.Digest,
					sec.size, l.Size)
			}
			img.sections = append(img.sections, sec)
		}
		return img, nil
	}
	return img, invalid("more than %d indexes in each other", maxNested)
}

// archiveName is the complete name a manifest of an OCI layout is annotated with, if any: often there is just a tag.
func archiveName(d ocispec.Descriptor) string {
	if n := d.Annotations["io.containerd.image.name"]; n != "" {
		return n
	}
	if n := d.Annotations[ocispec.AnnotationRefName]; strings.ContainsAny(n, "/:@") {
		return n
	}
	return ""
}

package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/image/layer"
	"github.com/berth-node/berth/cri/store"
)

// importer makes images of archives.
type importer struct {
	images   *catalog
	content  *content
	leases   *leases
	unpacker *unpacker
	machine  platforms.MatchComparer
	archives *store.Table[archiveRecord] // of dir, by path
	dir      string                      // whose archives are imported; "" = none
	maxFill  float64
	log      *slog.Logger
}

// read imports an archive.
func (im *importer) read(ctx context.Context, r io.Reader, progress func(Progress)) ([]Image, error) {
	images, err := im.readAll(ctx, r, progress)
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	return images, nil
}

func (im *importer) readAll(ctx context.Context, r io.Reader, progress func(Progress)) ([]Image, error) {
	var mu sync.Mutex
	tell := func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		if progress != nil {
			progress(p)
		}
	}
	tell(Progress{Phase: Resolving})
	file, size, done, err := im.seekable(ctx, r)
	if err != nil {
		return nil, err
	}
	defer done()
	a, err := openArchive(file, size)
	if err != nil {
		return nil, err
	}
	found, err := a.images(im.machine)
	if err != nil {
		return nil, err
	}
	var images []Image
	for _, f := range found {
		img, err := im.take(ctx, a, f, tell)
		if err != nil {
			return nil, err
		}
		tell(Progress{Ref: label(f), Phase: Done})
		images = append(images, img)
	}
	return images, nil
}

func label(f archived) string {
	if len(f.names) > 0 {
		return f.names[0]
	}
	return f.id.String()
}

// take makes an image of one in an archive.
func (im *importer) take(ctx context.Context, a *archive, f archived, tell func(Progress)) (Image, error) {
	config, chain, err := parseConfig(f.config, len(f.layers))
	if err != nil {
		return Image{}, err
	}
	names, err := archivedNames(f)
	if err != nil {
		return Image{}, err
	}
	warnPlatform(im.log, im.machine, label(f), config)
	defer im.leases.take(layerKeys(chain)...)()
	for d, body := range f.keep {
		defer im.leases.take(d.String())()
		if err := im.content.write(d, body); err != nil {
			return Image{}, err
		}
	}
	kept := slices.Sorted(maps.Keys(f.keep))
	if err := im.content.outlive(kept, im.unpacker.layers, topOf(chain)); err != nil {
		return Image{}, err
	}
	u := &unpacking{unpacker: im.unpacker, ref: label(f), tell: tell}
	for i, desc := range f.layers {
		diffID := config.RootFS.DiffIDs[i]
		if desc.Digest == "" {
			desc.Digest = diffID // to call it by
		}
		u.add(chain[:i+1], diffID, desc, func(_ context.Context, count func(int)) (packed, error) {
			return a.open(f.sections[i], desc, count), nil
		})
	}
	if err := u.run(ctx); err != nil {
		return Image{}, err
	}
	return im.images.put(f.id.String(), imageRecord{
		Manifest: f.manifest, Content: kept, Layers: chain, Config: config,
		PulledAt: time.Now(),
	}, names)
}

// archivedNames completes the names an archive gives to an image.
func archivedNames(f archived) (map[string]digest.Digest, error) {
	names := map[string]digest.Digest{}
	for _, n := range f.names {
		named, err := ParseName(n)
		if err != nil {
			return nil, err
		}
		if _, ok := named.(reference.Tagged); ok {
			names[named.String()] = f.target
		}
		if f.target != "" {
			names[reference.TrimNamed(named).String()+"@"+f.target.String()] = f.target
		}
	}
	return names, nil
}

// seekable returns r as something that can be read anywhere, unpacked.
func (im *importer) seekable(ctx context.Context, r io.Reader) (file io.ReaderAt, size int64, done func(), err error) {
	if f, ok := r.(*os.File); ok {
		if at, size, ok := plainFile(f); ok {
			return io.NewSectionReader(f, at, size), size, func() {}, nil
		}
	}
	f, err := im.content.unnamed()
	if err != nil {
		return nil, 0, nil, fmt.Errorf("make room for the archive: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	budget, err := layer.BudgetOf(im.content.dir, im.maxFill)
	if err != nil {
		return nil, 0, nil, err
	}
	z, err := layer.Decompress(&until{ctx, r})
	if err != nil {
		return nil, 0, nil, fmt.Errorf("read archive: %w", err)
	}
	defer z.Close()
	size, err = io.Copy(f, io.LimitReader(z, budget.Bytes()+1))
	if err == nil && size > budget.Bytes() {
		err = layer.ErrTooBig
	}
	if err != nil {
		return nil, 0, nil, fmt.Errorf("read archive: %w", err)
	}
	return f, size, func() { f.Close() }, nil
}

// plainFile says where in an unpacked regular file r stands and how much follows.
func plainFile(f *os.File) (at, size int64, ok bool) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0, 0, false
	}
	at, err = f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, 0, false
	}
	var magic [4]byte
	n, _ := f.ReadAt(magic[:], at)
	return at, info.Size() - at, !layer.IsPacked(magic[:n])
}

// until makes a reader end with a context, between two reads.
type until struct {
	ctx context.Context
	r   io.Reader
}

func (u *until) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.r.Read(p)
}

// archiveRecord remembers an archive that was imported, as it was then.
type archiveRecord struct {
	Size  int64
	MTime time.Time
	IDs   []string
}

// readDir imports the archives of the directory that it has to; none of those done, to which it adds.
func (im *importer) readDir(ctx context.Context, done map[string]bool) error {
	if im.dir == "" {
		return nil
	}
	entries, err := os.ReadDir(im.dir)
	if err != nil {
		return fmt.Errorf("import archives: %w", err)
	}
	var errs []error
	seen := map[string]struct{}{}
	for _, e := range entries {
		file := filepath.Join(im.dir, e.Name())
		if !isArchive(e.Name()) {
			continue
		}
		seen[file] = struct{}{}
		if done[file] {
			continue
		}
		if err := im.readFile(ctx, file); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		} else {
			done[file] = true
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	for file := range im.archives.All() {
		if _, ok := seen[file]; !ok && filepath.Dir(file) == filepath.Clean(im.dir) {
			errs = append(errs, im.archives.Delete(file))
		}
	}
	return errors.Join(errs...)
}

// isArchive goes by the end of the name, so that what lies beside archives is no error.
func isArchive(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	for _, end := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.zstd"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

func (im *importer) readFile(ctx context.Context, file string) error {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not keep us
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	if r, err := im.archives.Get(file); err == nil && r.Size == info.Size() && r.MTime.Equal(info.ModTime()) &&
		im.images.haveAll(r.IDs) {
		return nil
	}
	images, err := im.read(ctx, f, nil)
	if err != nil {
		return err
	}
	r := archiveRecord{Size: info.Size(), MTime: info.ModTime()}
	for _, i := range images {
		r.IDs = append(r.IDs, i.ID)
		im.log.Info("image imported", "image", i.ID, "names", i.Names(), "archive", file)
	}
	return im.archives.Put(file, r)
}

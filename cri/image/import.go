package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/image/layer"
)

// Import reads an archive of docker save or in the OCI layout, packed with gzip, zstd or nothing, and returns the images
// in it that are for this machine. An unpacked archive in a file is read in place; anything else goes through a file
// without a name first, because its table of contents may be its last entry. progress is as for [Store.Pull].
func (s *Store) Import(ctx context.Context, r io.Reader, progress func(Progress)) ([]Image, error) {
	images, err := s.importFrom(ctx, r, progress)
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	return images, nil
}

func (s *Store) importFrom(ctx context.Context, r io.Reader, progress func(Progress)) ([]Image, error) {
	var mu sync.Mutex
	tell := func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		if progress != nil {
			progress(p)
		}
	}
	tell(Progress{Phase: Resolving})
	file, size, done, err := s.seekable(ctx, r)
	if err != nil {
		return nil, err
	}
	defer done()
	a, err := openArchive(file, size)
	if err != nil {
		return nil, err
	}
	found, err := s.archived(a)
	if err != nil {
		return nil, err
	}
	var images []Image
	for _, f := range found {
		img, err := s.take(ctx, a, f, tell)
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
func (s *Store) take(ctx context.Context, a *archive, f archived, tell func(Progress)) (Image, error) {
	config, chain, err := parseConfig(f.config, len(f.layers))
	if err != nil {
		return Image{}, err
	}
	names, err := archivedNames(f)
	if err != nil {
		return Image{}, err
	}
	s.warnPlatform(label(f), config)
	defer s.lease(layerKeys(chain)...)()
	for d, body := range f.keep {
		defer s.lease(d.String())()
		if err := s.content.write(d, body); err != nil {
			return Image{}, err
		}
	}
	u := &unpacker{store: s, ref: label(f), tell: tell}
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
	return s.record(f.id.String(), imageRecord{
		Manifest: f.manifest, Content: slices.Sorted(maps.Keys(f.keep)), Layers: chain, Config: config, PulledAt: time.Now(),
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
func (s *Store) seekable(ctx context.Context, r io.Reader) (file io.ReaderAt, size int64, done func(), err error) {
	if f, ok := r.(*os.File); ok {
		if at, size, ok := plainFile(f); ok {
			return io.NewSectionReader(f, at, size), size, func() {}, nil
		}
	}
	f, err := s.content.unnamed()
	if err != nil {
		return nil, 0, nil, fmt.Errorf("make room for the archive: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	budget, err := layer.BudgetOf(s.content.dir, s.cfg.MaxFill)
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

// ImportArchives imports every archive in the directory for them that has not been imported yet, has changed since, or whose images
// were removed. One that cannot be read does not keep the others back.
func (s *Store) ImportArchives(ctx context.Context) error {
	dir := s.cfg.Archives
	if dir == "" {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("import archives: %w", err)
	}
	var errs []error
	seen := map[string]struct{}{}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		if !isArchive(e.Name()) {
			continue
		}
		seen[file] = struct{}{}
		if err := s.importFile(ctx, file); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	for file := range s.archives.All() {
		if _, ok := seen[file]; !ok && filepath.Dir(file) == filepath.Clean(dir) {
			errs = append(errs, s.archives.Delete(file))
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

func (s *Store) importFile(ctx context.Context, file string) error {
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
	if r, err := s.archives.Get(file); err == nil && r.Size == info.Size() && r.MTime.Equal(info.ModTime()) && s.haveAll(r.IDs) {
		return nil
	}
	images, err := s.Import(ctx, f, nil)
	if err != nil {
		return err
	}
	r := archiveRecord{Size: info.Size(), MTime: info.ModTime()}
	for _, i := range images {
		r.IDs = append(r.IDs, i.ID)
		s.log.Info("image imported", "image", i.ID, "names", i.Names(), "archive", file)
	}
	return s.archives.Put(file, r)
}

func (s *Store) haveAll(ids []string) bool {
	for _, id := range ids {
		if _, err := s.images.Get(id); err != nil {
			return false
		}
	}
	return true
}

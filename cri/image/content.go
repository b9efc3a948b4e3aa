package image

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/keylock"
)

// content is files by digest: blobs/<algorithm>/<hex> that are whole, and ingest/<algorithm>-<hex> that are beginnings
// of such. A rename makes one of the other, so there is nothing to record.
//
// Manifests and configurations stay. A packed layer stays only until it is unpacked: nothing needs it afterwards, and
// it would add a third to what an image takes of the disk.
type content struct {
	dir      string
	locks    keylock.Locks[digest.Digest] // held by who fetches
	patience time.Duration                // for who fetches the same
}

// fetchPatience is how long a fetch waits for another one of the same. That may be of a registry that hardly sends
// anything, and for somebody else: then both fetch.
const fetchPatience = time.Minute

func openContent(dir string, log *slog.Logger) *content {
	c := &content{dir: dir, patience: fetchPatience}
	// What cannot be removed now, of a disk that is read-only perhaps, is no reason not to start.
	var errs []error
	// Unfinished files of a process that is gone; nobody else works in this directory.
	left, err := filepath.Glob(filepath.Join(dir, "ingest", temporary+"*"))
	errs = append(errs, err)
	for _, f := range left {
		errs = append(errs, os.Remove(f))
	}
	if err := errors.Join(errs...); err != nil {
		log.Warn("unfinished content is not removed", "error", err)
	}
	return c
}

// temporary begins the names of files in ingest that are no beginnings of content.
const temporary = "tmp-"

// unnamed makes a file that is gone when it is closed, however that comes about.
func (c *content) unnamed() (*os.File, error) {
	f, err := c.begun()
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// begun makes a file that may become content.
func (c *content) begun() (*os.File, error) {
	return within(filepath.Join(c.dir, "ingest"),
		func(dir string) (*os.File, error) { return os.CreateTemp(dir, temporary) })
}

// within makes a file in a directory, which is made when it is missing: at the start the disk may be one that cannot be
// written.
func within(dir string, make func(dir string) (*os.File, error)) (*os.File, error) {
	f, err := make(dir)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o700); err == nil {
			f, err = make(dir)
		}
	}
	return f, err
}

// into gives a file its name, in a directory that is made when it is missing.
func into(file, name string) error {
	err := os.Rename(file, name)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		err = os.Rename(file, name)
	}
	return err
}

// The digests have been validated, so they hold no slash.
func (c *content) blob(d digest.Digest) string {
	return filepath.Join(c.dir, "blobs", d.Algorithm().String(), d.Encoded())
}

func (c *content) partial(d digest.Digest) string {
	return filepath.Join(c.dir, "ingest", d.Algorithm().String()+"-"+d.Encoded())
}

// lock keeps others from fetching the same content.
func (c *content) lock(ctx context.Context, d digest.Digest) (unlock func(), err error) {
	return c.locks.Lock(ctx, d)
}

// read returns small content, or [os.ErrNotExist]. What a power cut has damaged is not there, nor is what is not small:
// whoever makes an image can call its manifest or configuration by the digest of a layer, which may be here just now.
func (c *content) read(d digest.Digest) ([]byte, error) {
	f, err := os.Open(c.blob(d))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxConfig {
		return nil, fmt.Errorf("content %s of more than %d bytes: %w", d, maxConfig, os.ErrNotExist)
	}
	if d.Algorithm().FromBytes(b) != d {
		if err := os.Remove(c.blob(d)); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("content %s is damaged: %w", d, os.ErrNotExist)
	}
	return b, nil
}

// write keeps small content.
func (c *content) write(d digest.Digest, b []byte) error {
	if _, err := c.read(d); err == nil {
		return nil
	}
	f, err := c.begun()
	if err != nil {
		return fmt.Errorf("keep content %s: %w", d, err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // it has another name when it is kept; else the next start gets it
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = into(f.Name(), c.blob(d))
	}
	if err != nil {
		return fmt.Errorf("keep content %s: %w", d, err)
	}
	return nil
}

// outlive has kept content outlive a loss of power, of an image that is about to have a record. New layers are on the
// disk before their records say so (the snapshotter's Sync), with whatever was written before them; an image that finds
// all of its layers here, as one that is pulled again while a container stands on them, has nobody who syncs.
func (c *content) outlive(kept []digest.Digest, l *layers, top string) error {
	if !l.carry(top) {
		return nil
	}
	dirs := map[string]bool{}
	for _, d := range kept {
		f, err := os.Open(c.blob(d))
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return fmt.Errorf("sync content %s: %w", d, err)
		}
		dirs[filepath.Dir(c.blob(d))] = true
	}
	for dir := range dirs {
		if err := atomicfile.SyncDir(dir); err != nil {
			return fmt.Errorf("sync content: %w", err)
		}
	}
	return nil
}

// size is how many bytes of that content are here.
func (c *content) size(ds []digest.Digest) (n int64) {
	for _, d := range ds {
		if info, err := os.Stat(c.blob(d)); err == nil {
			n += info.Size()
		}
	}
	return n
}

func (c *content) remove(d digest.Digest) error {
	return errors.Join(ignoreNotExist(os.Remove(c.blob(d))), ignoreNotExist(os.Remove(c.partial(d))))
}

func ignoreNotExist(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// collect deletes whole content that keep is false for, and beginnings that are older than that.
func (c *content) collect(keep func(d digest.Digest) bool, old time.Time) error {
	var errs []error
	algorithms, err := os.ReadDir(filepath.Join(c.dir, "blobs"))
	errs = append(errs, ignoreNotExist(err))
	for _, a := range algorithms {
		names, err := os.ReadDir(filepath.Join(c.dir, "blobs", a.Name()))
		errs = append(errs, err)
		for _, n := range names {
			if d := digest.NewDigestFromEncoded(digest.Algorithm(a.Name()), n.Name()); !keep(d) {
				errs = append(errs, ignoreNotExist(os.Remove(filepath.Join(c.dir, "blobs", a.Name(), n.Name()))))
			}
		}
	}
	partials, err := os.ReadDir(filepath.Join(c.dir, "ingest"))
	errs = append(errs, ignoreNotExist(err))
	for _, p := range partials {
		a, hex, _ := strings.Cut(p.Name(), "-")
		if strings.HasPrefix(p.Name(), temporary) || keep(digest.NewDigestFromEncoded(digest.Algorithm(a), hex)) {
			continue
		}
		if info, err := p.Info(); err == nil && info.ModTime().Before(old) {
			errs = append(errs, ignoreNotExist(os.Remove(filepath.Join(c.dir, "ingest", p.Name()))))
		}
	}
	return errors.Join(errs...)
}

// source is where content comes from.
type source struct {
	fetch func(offset int64) io.ReadCloser
	other func() bool // turns to another place, if there is one
}

// stream reads content that is partly or wholly here and partly still elsewhere, keeps what arrives, and hashes all of
// it.
type stream struct {
	desc    ocispec.Descriptor
	have    int64 // bytes of file that were here before
	file    *os.File
	from    source
	rest    io.ReadCloser
	hash    hash.Hash
	offset  int64
	failed  error // of reading or keeping, not of the content
	whole   bool  // file is a blob already
	own     bool  // file is nobody else's, and goes unless it becomes a blob
	content *content
	unlock  func()
	count   func(n int)
}

// open begins to read desc. Only one at a time does, so what others fetched meanwhile is not fetched again; but nobody
// waits for ever for somebody else's registry.
func (c *content) open(ctx context.Context, desc ocispec.Descriptor, from source, count func(int)) (*stream, error) {
	s := &stream{desc: desc, from: from, hash: desc.Digest.Algorithm().Hash(), content: c, count: count}
	waiting, cancel := context.WithTimeout(ctx, c.patience)
	unlock, err := c.lock(waiting, desc.Digest)
	cancel()
	switch {
	case err == nil:
		s.unlock = unlock
		err = s.shared()
	case ctx.Err() != nil:
		return nil, err
	default:
		s.unlock, s.own = func() {}, true
		s.file, err = c.begun()
	}
	if err != nil {
		s.unlock()
		return nil, fmt.Errorf("keep content %s: %w", desc.Digest, err)
	}
	return s, nil
}

// shared opens what is here of the content.
func (s *stream) shared() (err error) {
	c, desc := s.content, s.desc
	s.whole = true
	s.file, err = os.Open(c.blob(desc.Digest))
	if errors.Is(err, os.ErrNotExist) {
		s.whole = false
		s.file, err = within(filepath.Join(c.dir, "ingest"), func(string) (*os.File, error) {
			return os.OpenFile(c.partial(desc.Digest), os.O_RDWR|os.O_CREATE, 0o600)
		})
	}
	if err == nil {
		s.have, err = s.file.Seek(0, io.SeekEnd)
	}
	if err == nil && s.have > desc.Size {
		s.have = 0
		if !s.whole {
			err = s.file.Truncate(0)
		}
	}
	return err
}

func (s *stream) Read(p []byte) (n int, err error) {
	switch {
	case s.offset < s.have:
		n, err = s.file.ReadAt(p[:min(int64(len(p)), s.have-s.offset)], s.offset)
		if n > 0 {
			err = nil
		}
	default:
		if s.rest == nil {
			s.rest = s.from.fetch(s.offset)
		}
		n, err = s.rest.Read(p)
		if n > 0 && !s.whole {
			if _, werr := s.file.WriteAt(p[:n], s.offset); werr != nil {
				n, err = 0, fmt.Errorf("keep content %s: %w", s.desc.Digest, werr)
			}
		}
	}
	s.hash.Write(p[:n])
	s.offset += int64(n)
	if n > 0 {
		s.count(n)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	return n, err
}

// again says that another try may read other bytes: some of these were here before, maybe damaged, or another host has
// it.
func (s *stream) again() bool { return s.have > 0 || s.from.other() }

// trouble is what went wrong with reading or keeping, as opposed to with what was read.
func (s *stream) trouble() error { return s.failed }

// keeps is what is not here yet.
func (s *stream) keeps() int64 {
	if s.whole {
		return 0
	}
	return s.desc.Size - s.have
}

// verify checks what was read, to its end, and makes it a blob.
func (s *stream) verify() error {
	if s.offset != s.desc.Size {
		return fmt.Errorf("content %s has %d bytes, its descriptor says %d", s.desc.Digest, s.offset, s.desc.Size)
	}
	if got := digest.NewDigest(s.desc.Digest.Algorithm(), s.hash); got != s.desc.Digest {
		return fmt.Errorf("content %s has another digest: %s", s.desc.Digest, got)
	}
	if s.whole {
		return nil
	}
	if err := into(s.file.Name(), s.content.blob(s.desc.Digest)); err != nil {
		return fmt.Errorf("keep content %s: %w", s.desc.Digest, err)
	}
	s.whole = true
	return nil
}

// discard forgets what is here of the content.
func (s *stream) discard() error {
	if s.own {
		return nil // it goes when it is closed, and what others fetch is theirs
	}
	return s.content.remove(s.desc.Digest)
}

// Close keeps what arrived, for the next time.
func (s *stream) Close() error {
	defer s.unlock()
	var err error
	if s.rest != nil {
		err = s.rest.Close()
	}
	err = errors.Join(err, s.file.Close())
	if s.own && !s.whole {
		err = errors.Join(err, os.Remove(s.file.Name()))
	}
	return err
}

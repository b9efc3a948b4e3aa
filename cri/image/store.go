package image

import (
	"context"
	"errors"
	"io"
	"log/slog"
)

// Store is the images of this node. It is safe for concurrent use.
type Store struct {
	cfg Config
	log *slog.Logger
}

// Pull brings the image ref here. Pulls of one name with the same credentials are one.
func (s *Store) Pull(ctx context.Context, ref string, auth *Auth, progress func(Progress)) (Image, error) {
	return Image{}, errors.ErrUnsupported
}

// Import reads an archive of docker save or in the OCI layout, compressed or not.
func (s *Store) Import(ctx context.Context, r io.Reader, progress func(Progress)) ([]Image, error) {
	return nil, errors.ErrUnsupported
}

// ImportDir imports every archive in dir that has not been imported yet.
func (s *Store) ImportDir(ctx context.Context, dir string) error { return errors.ErrUnsupported }

// Get finds an image by ID, unique prefix of an ID, name or name@digest; [ErrNotFound] when there is none.
func (s *Store) Get(ref string) (Image, error) { return Image{}, ErrNotFound }

// List returns all images, in the order of their IDs.
func (s *Store) List() []Image { return nil }

// Remove removes the image that ref names (as for [Store.Get]) with all its names. Layers that other images or containers
// still stand on stay.
func (s *Store) Remove(ctx context.Context, ref string) error { return ErrNotFound }

// Pin marks or unmarks an image as one that garbage collection must keep.
func (s *Store) Pin(ref string, pinned bool) error { return ErrNotFound }

// Usage is what all images take on disk.
func (s *Store) Usage() (bytes, inodes uint64, err error) { return 0, 0, nil }

// Collect removes what no image explains: content, layers, remains of pulls that failed.
func (s *Store) Collect(ctx context.Context) error { return nil }

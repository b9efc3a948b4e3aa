package image

import (
	"context"
	"errors"
	"io"
	"time"
)

type archiveRecord struct {
	Size  int64
	MTime time.Time
	IDs   []string
}

// Import reads an archive of docker save or in the OCI layout, compressed or not.
func (s *Store) Import(ctx context.Context, r io.Reader, progress func(Progress)) ([]Image, error) {
	return nil, errors.ErrUnsupported
}

// ImportDir imports every archive in dir that has not been imported yet.
func (s *Store) ImportDir(ctx context.Context, dir string) error { return errors.ErrUnsupported }

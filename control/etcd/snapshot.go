package etcd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-node/berth/internal/atomicfile"
)

// blockSize is what the database in a snapshot is a multiple of; the digest comes after it.
const blockSize = 512

// Snapshot writes a copy of the store to a file. The file is there when it is whole: its end is the digest of what
// comes before, which is checked as it is written.
func Snapshot(ctx context.Context, client *clientv3.Client, path string) error {
	part := path + atomicfile.Part
	if err := writeSnapshot(ctx, client, part); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return fmt.Errorf("write snapshot of etcd: %w", err)
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// writeSnapshot writes a copy that nobody sees yet, and nothing where it fails.
func writeSnapshot(ctx context.Context, client *clientv3.Client, part string) (err error) {
	from, err := client.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("read snapshot of etcd: %w", err)
	}
	defer from.Close()
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write snapshot of etcd: %w", err)
	}
	defer func() {
		f.Close()
		if err != nil {
			_ = os.Remove(part) // the next one begins with it
		}
	}()
	size, err := io.Copy(f, from)
	if err != nil {
		return fmt.Errorf("write snapshot of etcd: %w", err)
	}
	if err := checkSnapshot(part, size); err != nil {
		return fmt.Errorf("check snapshot of etcd: %w", err)
	}
	// The digest is of what was read. A copy of a store that is damaged may not take the place of one that was not.
	if err := readWhole(part); err != nil {
		return fmt.Errorf("check snapshot of etcd: the store itself is damaged: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write snapshot of etcd: %w", err)
	}
	return nil
}

// checkSnapshot compares the digest at the end of a file with what comes before.
func checkSnapshot(path string, size int64) error {
	if size%blockSize != sha256.Size {
		return errors.New("its digest is missing: it is torn, or no snapshot of etcd")
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.CopyN(sum, f, size-sha256.Size); err != nil {
		return err
	}
	want := make([]byte, sha256.Size)
	if _, err := io.ReadFull(f, want); err != nil {
		return err
	}
	if [sha256.Size]byte(sum.Sum(nil)) != [sha256.Size]byte(want) {
		return errors.New("its digest is another one's: it is damaged")
	}
	return nil
}

package cluster

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/keyutil"

	"github.com/berth-node/berth/internal/atomicfile"
)

// store has the certificates of one kind with their keys, in files that are kubelet's: NAME-<time>.pem, of which the
// symbolic link NAME-current.pem names the one in use, and NAME.key.tmp, the key whose certificate is asked for. The
// key is there before the request is sent: who was killed after it finds the same request again.
type store struct {
	dir, name string
}

func (s *store) currentPath() string { return filepath.Join(s.dir, s.name+"-current.pem") }
func (s *store) pendingPath() string { return filepath.Join(s.dir, s.name+".key.tmp") }

// partPattern is what is renamed when it is whole; kept for [store.clean].
func (s *store) partPattern() string { return "." + s.name + ".*.part" }

// kept is a certificate of a store.
type kept struct {
	tls.Certificate
	data    []byte // with the key
	written time.Time
}

// current reads the certificate in use; nil: there is none.
func (s *store) current() (*kept, error) {
	data, st, err := readFile(s.currentPath(), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	pair, err := parsePair(data, data)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", s.currentPath(), err)
	}
	return &kept{*pair, data, st.ModTime()}, nil
}

// prepare makes the directory, and refuses one in which somebody else can exchange the files.
func (s *store) prepare() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make directory of certificates: %w", err)
	}
	st, err := os.Stat(s.dir)
	if err != nil {
		return fmt.Errorf("look at directory of certificates: %w", err)
	}
	owner := st.Sys().(*syscall.Stat_t).Uid
	if st.Mode().Perm()&0o022 != 0 || owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("keep keys in %s: others may write to it (mode %04o, owner %d)", s.dir, st.Mode().Perm(), owner)
	}
	return nil
}

// clean removes what a crash between writing and renaming has left.
func (s *store) clean() {
	left, _ := filepath.Glob(filepath.Join(s.dir, s.partPattern())) // the pattern is good
	for _, path := range left {
		_ = os.Remove(path) // it is in nobody's way
	}
}

// pending returns the key that a certificate is asked for with, which it makes when there is none.
func (s *store) pending() (crypto.Signer, error) {
	if err := s.prepare(); err != nil {
		return nil, err
	}
	if key := s.found(); key != nil {
		return key, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err == nil {
		err = s.replace(s.pendingPath(), data)
	}
	if err != nil {
		return nil, fmt.Errorf("keep key: %w", err)
	}
	return key, nil
}

// found is the pending key that is there; nil: there is none, or one that others know or that cannot be read.
func (s *store) found() crypto.Signer {
	data, st, err := readFile(s.pendingPath(), unix.O_NOFOLLOW)
	if err != nil || st.Mode().Perm()&0o077 != 0 || int(st.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return nil
	}
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil
	}
	signer, _ := key.(crypto.Signer)
	return signer
}

// forget removes the pending key: its certificate is kept, or there will be none.
func (s *store) forget() error {
	if err := os.Remove(s.pendingPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove key: %w", err)
	}
	return nil
}

// write keeps a certificate with its key, which nobody uses yet.
func (s *store) write(cert []byte, key crypto.Signer, now time.Time) (string, error) {
	if err := s.prepare(); err != nil {
		return "", err
	}
	data, err := joinPair(cert, key)
	if err != nil {
		return "", err
	}
	path := s.dated(now)
	if s.inUse(path) { // its name is taken by who asks twice in a second, or whose clock was set back
		path = s.dated(now.Add(time.Second))
	}
	return path, s.replace(path, data)
}

func (s *store) dated(at time.Time) string {
	return filepath.Join(s.dir, s.name+"-"+at.Format("2006-01-02-15-04-05")+".pem")
}

func (s *store) inUse(path string) bool {
	a, err := os.Stat(path)
	b, no := os.Stat(s.currentPath())
	return err == nil && no == nil && os.SameFile(a, b)
}

func joinPair(cert []byte, key crypto.Signer) ([]byte, error) {
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return slices.Concat(bytes.TrimSpace(cert), []byte("\n"), data), nil
}

// use has a file that was written be the one in use, and removes those before the last.
func (s *store) use(path string) error {
	part := filepath.Join(s.dir, fmt.Sprintf(".%s.%d.part", s.name, os.Getpid()))
	_ = os.Remove(part) // of a process that was killed
	err := os.Symlink(path, part)
	before, _ := os.Readlink(s.currentPath())
	if err == nil {
		err = os.Rename(part, s.currentPath())
	}
	if err == nil {
		err = atomicfile.SyncDir(s.dir)
	}
	if err != nil {
		return fmt.Errorf("use certificate: %w", err)
	}
	s.prune(path, before)
	return nil
}

// prune removes certificates that are neither in use nor were it until now.
func (s *store) prune(keep ...string) {
	dated := regexp.MustCompile(`^` + regexp.QuoteMeta(s.name) + `-\d{4}(-\d\d){5}\.pem$`)
	entries, _ := os.ReadDir(s.dir)
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		if e.Type().IsRegular() && dated.MatchString(e.Name()) && !slices.Contains(keep, path) {
			_ = os.Remove(path) // the next one tries again
		}
	}
}

func (s *store) replace(path string, data []byte) error {
	return replace(path, filepath.Join(s.dir, s.partPattern()), data)
}

// replace writes a file as a whole, and to the disk. It never writes to what is there, which may be a link.
func replace(path, part string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(part), filepath.Base(part)) // of mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// Package kept keeps the desired pods of an API server on the node, with what they refer to, encrypted, so that a
// machine that starts without its API server runs them.
//
// The key is of the machine: a credential of the service (systemd's, which may be sealed to the TPM), else a file that
// only root reads. What is kept is worth no more than who has that file: it holds Secrets.
package kept

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/internal/atomicfile"
)

// The files of the directory.
const (
	podsFile = "pods"
	keyFile  = "key"
)

// Pod is a desired pod, as the server had it, with the objects that it takes to start it.
type Pod struct {
	Pod     *corev1.Pod
	Objects []object.Object
}

// Config says where pods are kept.
type Config struct {
	Dir         string // made when it is first needed
	Node        string // whose pods they are
	Credentials string // directory of the service's credentials ($CREDENTIALS_DIRECTORY); "": none
	Log         *slog.Logger
	Every       time.Duration // how often it is written at most; 0: 2 s
	Max         int           // bytes that are kept at most; 0: 32 MiB
}

const (
	defaultEvery = 2 * time.Second
	defaultMax   = 32 << 20
)

// Store keeps the latest set of pods that it was given.
type Store struct {
	cfg  Config
	path string
	key  key

	mu    sync.Mutex
	next  []Pod
	due   bool
	ready chan struct{}

	// What follows belongs to the goroutine of Run.
	written [sha256.Size]byte // of what the file has
	told    bool              // that it cannot be written
	short   bool              // that not all fits
}

// Open makes the key ready. It fails when there is none and none can be made: nothing is kept then.
func Open(cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Every <= 0 {
		cfg.Every = defaultEvery
	}
	if cfg.Max <= 0 {
		cfg.Max = defaultMax
	}
	if err := atomicfile.MkdirSynced(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	k, err := openKey(cfg.Dir, cfg.Credentials, cfg.Log)
	if err != nil {
		return nil, err
	}
	return &Store{cfg: cfg, path: filepath.Join(cfg.Dir, podsFile), key: k, ready: make(chan struct{}, 1)}, nil
}

// Remove takes away what was kept: where nothing is to be kept any more, nothing of it may stay.
func Remove(dir string) error { return os.RemoveAll(dir) }

// Load reads the pods that were kept. What is of no use is put aside, and said: the node starts without it.
func (s *Store) Load() []Pod {
	data, err := readBounded(s.path, s.cfg.Max*2)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var plain []byte
	if err == nil {
		plain, err = s.key.open(data, s.cfg.Node)
	}
	var pods []Pod
	if err == nil {
		pods, err = decode(plain)
	}
	if err == nil {
		s.written = sha256.Sum256(plain)
		return pods
	}
	s.cfg.Log.Error("pods that were kept for a start without the API server are of no use, and are put aside", "path", s.path,
		"aside", s.path+record.Aside, "error", err)
	if err := os.Rename(s.path, s.path+record.Aside); err != nil {
		s.cfg.Log.Warn("they stay until they are written over", "path", s.path, "error", err)
	}
	return nil
}

// Save has these pods be kept, and no others. It does not wait; of several sets the latest counts.
func (s *Store) Save(pods []Pod) {
	s.mu.Lock()
	s.next, s.due = pods, true
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Run writes what is to be kept, until ctx ends, and then what it was given last.
func (s *Store) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			s.write()
			return
		case <-s.ready:
		}
		ok := s.write()
		timer := time.NewTimer(s.cfg.Every)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		if !ok {
			s.again()
		}
	}
}

// again has what could not be written be tried again.
func (s *Store) again() {
	s.mu.Lock()
	s.due = true
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// write writes what is to be kept, if it is not what the file has, and says whether the file has it.
func (s *Store) write() bool {
	s.mu.Lock()
	pods, due := s.next, s.due
	s.due = false
	s.mu.Unlock()
	if !due {
		return true
	}
	plain, left := encode(pods, s.cfg.Max)
	if left > 0 != s.short {
		s.short = left > 0
		s.cfg.Log.Warn("pods that are kept for a start without the API server are too large, so that those with the lowest priority "+
			"are not kept", "bytes", s.cfg.Max, "pods-left", left)
	}
	sum := sha256.Sum256(plain)
	if sum == s.written {
		return true
	}
	err := s.replace(pods, plain)
	switch {
	case err == nil:
		s.written, s.told = sum, false
	case !s.told:
		s.told = true
		s.cfg.Log.Warn("pods are not kept for a start without the API server", "path", s.path, "error", err)
	}
	return err == nil
}

func (s *Store) replace(pods []Pod, plain []byte) error {
	if len(pods) == 0 {
		if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return atomicfile.SyncDir(s.cfg.Dir)
	}
	sealed, err := s.key.seal(plain, s.cfg.Node)
	if err != nil {
		return err
	}
	return atomicfile.WriteSynced(s.path, sealed, 0o600)
}

// Package kept keeps the desired pods of an API server on the node, with what they refer to and what was issued to
// them, encrypted, so that a machine that starts without its API server runs them.
//
// The key is of the machine: a credential of the service (systemd's, which may be sealed to the TPM), else a file that
// only root reads. What is kept is worth no more than who has that file: it holds Secrets.
package kept

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
	Every       time.Duration // how often it is tried again when it could not be written; 0: 2 s
	Max         int           // bytes that are kept at most; 0: 32 MiB
}

const (
	defaultEvery = 2 * time.Second
	defaultMax   = 32 << 20
)

// Store keeps the latest set of pods that it was given. What changes is put at the end of the file, so that a pod costs
// no more than what it is; all that come while the disk is at it go with the next sync.
type Store struct {
	cfg   Config
	ready chan struct{}

	mu     sync.Mutex
	next   []Pod
	saved  bool     // next is what is to be kept, and no longer what the file had at the start
	done   []func() // who waits for what comes next to be kept
	hands  []given
	issued map[string]map[string][]byte // what there is, whether or not the file has it

	file  sync.Mutex // of what follows
	state *state     // what the file is to have
	log   log
	size  int  // bytes in the state
	told  bool // that it cannot be written
	short bool // that not all fits
}

// Open makes the key ready and reads what was kept. It fails when there is no key and none can be made: nothing is kept
// then. What is of no use is put aside, and said: the node starts without it.
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
	s := &Store{
		cfg: cfg, ready: make(chan struct{}, 1), state: newState(), issued: map[string]map[string][]byte{},
		log: log{path: filepath.Join(cfg.Dir, podsFile), node: cfg.Node, key: k},
	}
	s.read()
	return s, nil
}

// Remove takes away what was kept: where nothing is to be kept any more, nothing of it may stay.
func Remove(dir string) error { return os.RemoveAll(dir) }

// read has the state be what the file has. What cannot be read costs the pods that need it, and no others: it may have
// been the end of a pod, too, which then runs until the API server says that it is gone.
func (s *Store) read() {
	lost, err := s.log.read(s.cfg.Max*4, s.state.apply)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.aside(err)
	}
	_, failed := s.state.decode()
	switch {
	case lost.damaged || len(failed) > 0:
		s.partly(errors.Join(failed...))
	case lost.torn:
		s.cfg.Log.Info("pods were being kept when the agent was killed, and are as they were before", "path", s.log.path)
	}
	for uid, all := range s.state.issued {
		s.issued[uid] = maps.Clone(all)
	}
	s.size = s.state.size()
}

func (s *Store) aside(err error) {
	path := s.log.path
	s.cfg.Log.Error("pods that were kept for a start without the API server are of no use, and are put aside", "path", path,
		"aside", path+record.Aside, "error", err)
	if err := os.Rename(path, path+record.Aside); err != nil {
		s.cfg.Log.Warn("they stay until they are written over", "path", path, "error", err)
	}
}

// partly says that not all can be read, and keeps the file as it is under another name: the next write makes it anew.
func (s *Store) partly(err error) {
	path := s.log.path
	s.log.head = nil
	s.cfg.Log.Error("some of what was kept for a start without the API server is damaged: the pods that need it wait for the server",
		"path", path, "pods", len(s.state.pods), "aside", path+record.Aside, "error", err)
	err = os.Remove(path + record.Aside)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Link(path, path+record.Aside)
	}
	if err != nil {
		s.cfg.Log.Warn("the damaged file is not put aside", "path", path, "error", err)
	}
}

// Load are the pods that are kept, with all that they need.
func (s *Store) Load() []Pod {
	s.file.Lock()
	defer s.file.Unlock()
	pods, _ := s.state.decode() // what is wrong with others was said when they were read
	return pods
}

// Save has these pods be kept, and no others. It does not wait; of several sets the latest counts. done is called when
// they are kept, or cannot be for now; it must not wait. nil: nobody wants to know.
func (s *Store) Save(pods []Pod, done func()) {
	s.mu.Lock()
	s.next, s.saved = pods, true
	if done != nil {
		s.done = append(s.done, done)
	}
	s.mu.Unlock()
	s.ring()
}

func (s *Store) ring() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// OfNode stands for the pod in what is kept of the node itself. No pod has it as its uid.
const OfNode types.UID = "*"

// What was issued to one pod is this much at most: more is not kept.
const (
	maxGiven     = 512 << 10
	maxGivenEach = 64
)

// Hand keeps something that was issued to a pod, under a name of it, for as long as the pod is kept. It waits until
// that is on the disk, or cannot be for now, or ctx ends.
func (s *Store) Hand(ctx context.Context, uid types.UID, name string, data []byte) {
	if len(data) > maxGiven {
		return
	}
	done := make(chan struct{})
	s.mu.Lock()
	all := s.issued[string(uid)]
	if all == nil {
		all = map[string][]byte{}
		s.issued[string(uid)] = all
	}
	if _, has := all[name]; !has && len(all) >= maxGivenEach {
		s.mu.Unlock()
		return
	}
	all[name] = data
	s.hands = append(s.hands, given{string(uid), name, data})
	s.done = append(s.done, func() { close(done) })
	s.mu.Unlock()
	s.ring()
	select {
	case <-ctx.Done():
	case <-done:
	}
}

// Handed is what was issued to a pod under a name.
func (s *Store) Handed(uid types.UID, name string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.issued[string(uid)][name]
	return data, ok
}

// Run writes what is to be kept, until ctx ends, and then what it was given last.
func (s *Store) Run(ctx context.Context) {
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			s.write()
			return
		case <-s.ready:
		case <-retry.C:
		}
		if !s.write() {
			retry.Reset(s.cfg.Every)
		}
	}
}

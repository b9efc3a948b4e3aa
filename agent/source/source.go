// Package source owns the set of pods this node should run. It reads them from a directory of manifests, makes static pods of
// them, and says on one channel what the latest desired pod of each name is.
//
// The kernel's notifications drive it, file by file and without a delay: a file is read when its writer closes it or when it
// is moved into place. A slow rescan only checks that the notifications told the truth. What runs is never lost to a
// mishap: a file that turns invalid, is emptied or cannot be read keeps its pods, and so does a directory that disappears.
package source

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/object"
)

const (
	defaultRescan = 20 * time.Second
	// While the kernel gives no notifications, reading the directory often is all there is.
	blindRescan = time.Second

	// A file that goes is given a moment to come back. An editor that keeps a backup renames the old file first, and writes a whole
	// new one then. What removes a file to save it, as tar and git do, makes it anew with the next calls; and the files of a directory
	// being deleted go one after the other, before it does. Each further removal extends the moment, up to a limit.
	renamedQuiet = 20 * time.Millisecond
	removedQuiet = 5 * time.Millisecond
	goneLimit    = 200 * time.Millisecond
	// A directory that comes back is usually filled one file after the other.
	goneReturned = time.Second
	// A file without a manifest's suffix is most often a temporary one, soon to be renamed or removed.
	oddDelay = 500 * time.Millisecond

	// The kernel tells that a writer closed a file a moment before it counts one writer less, so a file that seems to have one
	// is looked at again, soon at first.
	busyFirst = 50 * time.Microsecond
	busyMost  = time.Second
	busyTold  = 5 * time.Second // then it is said
)

// Config says where the manifests are and whose they are.
type Config struct {
	Dir      string        // need not exist yet
	NodeName string        // becomes part of each pod's name
	Rescan   time.Duration // 0: 20 s
	Quiet    time.Duration // how long a file that goes may take to come back; 0: 20 ms if it was renamed, 5 ms if it was removed
	Log      *slog.Logger
	Report   func(Problem) // called from Run when a problem comes, changes or goes (then without errors and warnings)

	// StateDir keeps the last good version of each manifest, so that a file that is invalid while the agent restarts does not
	// cost its pods. Empty: such pods are lost at a restart.
	StateDir string

	// URL has a manifest too, which is asked for with the Header; "" = none.
	URL      string
	Header   http.Header
	URLEvery time.Duration // 0: 20 s

	// Credentials is the directory of the service's credentials (systemd's $CREDENTIALS_DIRECTORY), which Secrets may take values from.
	Credentials string
}

// Update is the latest desired pod of a key, or its removal; or the latest of an object that pods may refer to. Both are shared and
// must not be written to. Objects come before the pods that the same files hold.
type Update struct {
	Kind   object.Kind // of Key; "" is a pod's too
	Key    types.NamespacedName
	Pod    *corev1.Pod   // nil: removed
	Object object.Object // nil: removed
	File   string
	Synced bool // every manifest was read once; comes once, without a key
}

// Problem is what is wrong with a manifest.
type Problem struct {
	File     string
	Pod      string // namespace/name, with the kind before it when it is no pod; "" when it concerns the file or cannot be told
	Errors   []string
	Warnings []string
	// Kept are the pods, as namespace/name, that run on as the file had them before: it cannot be told any more what it says of them.
	Kept []string
}

// Source watches one directory.
type Source struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	problems map[string][]Problem // by entry of the directory, "" for the directory itself
	missed   atomic.Int64

	// What follows belongs to the goroutine of Run.
	watch  *watcher
	dir    string // where Dir leads now, "" when nowhere
	dirID  identity
	files  map[string]*file
	claims map[object.Ref][]string // files that claim a key; the first one has it
	queue  *queue

	todo    []string // entries to read
	gone    map[string]bool
	goneAt  time.Time
	goneMax time.Time
	later   map[string]time.Time // entries to read then: odd ones, and those being written
	busy    map[string]busy      // files found open for writing
	unsaved map[string]bool      // files whose state is to be kept or dropped
	began   bool                 // the first scan has begun

	answers  chan answer // of the URL
	answered bool        // the URL was asked once
}

// New returns a Source that has not begun to watch.
func New(cfg Config) *Source {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Rescan <= 0 {
		cfg.Rescan = defaultRescan
	}
	if cfg.URLEvery <= 0 {
		cfg.URLEvery = urlEvery
	}
	if cfg.Report == nil {
		cfg.Report = func(Problem) {}
	}
	// Names of nodes are in lower case, those of hosts need not be.
	cfg.NodeName = strings.ToLower(cfg.NodeName)
	return &Source{
		cfg: cfg, log: cfg.Log, problems: map[string][]Problem{},
		files: map[string]*file{}, claims: map[object.Ref][]string{}, queue: newQueue(),
		gone: map[string]bool{}, answers: make(chan answer),
		later: map[string]time.Time{}, busy: map[string]busy{}, unsaved: map[string]bool{},
	}
}

// Missed counts the changes that a rescan found and no notification had told of.
func (s *Source) Missed() int64 { return s.missed.Load() }

// Run reads the manifests and sends what changed to out, until ctx ends. It runs once.
func (s *Source) Run(ctx context.Context, out chan<- Update) error {
	if s.cfg.Dir == "" || s.cfg.NodeName == "" {
		return errors.New("read manifests: directory and node name must be given")
	}
	done := make(chan struct{})
	raw := make(chan []byte)
	rescan := s.cfg.Rescan
	if w, err := newWatcher(); err != nil {
		s.log.Warn("changes of manifests are noticed a second late", "error", err)
		rescan = min(rescan, blindRescan)
	} else {
		s.watch = w
		var wait sync.WaitGroup
		wait.Go(func() { w.read(raw, done) })
		defer wait.Wait()
		defer w.file.Close()
	}
	defer close(done)
	if s.answered = s.cfg.URL == ""; !s.answered {
		ctx, cancel := context.WithCancel(ctx)
		f := fetcher{url: s.cfg.URL, every: s.cfg.URLEvery, header: s.cfg.Header, client: urlClient(s.cfg.Header)}
		var wait sync.WaitGroup
		wait.Go(func() { f.run(ctx, s.answers) })
		defer wait.Wait()
		defer cancel()
	}
	s.restore()
	s.resolve()
	s.scan(false)
	s.began = true
	s.loop(ctx, out, raw, rescan)
	return nil
}

func (s *Source) loop(ctx context.Context, out chan<- Update, raw <-chan []byte, every time.Duration) {
	rescan := time.NewTicker(every)
	defer rescan.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s.settleGone(time.Now())
		var send chan<- Update
		next, ok := s.nextUpdate()
		if ok {
			send = out
		}
		// With work at hand nothing is waited for: what can be sent is, and then the next file is read.
		if len(s.todo) > 0 {
			select {
			case <-ctx.Done():
				return
			case send <- next:
				s.queue.taken(next)
			case data := <-raw:
				s.handle(data)
			case a := <-s.answers:
				s.fetched(a)
			default:
				s.readNext()
			}
			continue
		}
		if !ok {
			s.save()
		}
		timer.Reset(s.untilDue(time.Now()))
		select {
		case <-ctx.Done():
			return
		case send <- next:
			s.queue.taken(next)
		case data := <-raw:
			s.handle(data)
		case a := <-s.answers:
			s.fetched(a)
		case <-timer.C:
		case <-rescan.C:
			s.resolve()
			s.scan(true)
		}
	}
}

// nextUpdate returns what to send next. The marker comes when nothing of the first scan is left to do.
func (s *Source) nextUpdate() (Update, bool) {
	if s.began && s.answered && !s.queue.scanned && len(s.todo) == 0 && len(s.gone) == 0 {
		s.queue.scanned = true
		for key := range s.claims {
			s.settle(key)
		}
	}
	return s.queue.head()
}

func (s *Source) readNext() {
	name := s.todo[0]
	s.todo = s.todo[1:]
	s.check(name)
}

// untilDue is how long nothing needs to be done if nothing happens.
func (s *Source) untilDue(now time.Time) time.Duration {
	due := now.Add(time.Hour)
	if len(s.gone) > 0 {
		due = s.goneAt
	}
	for _, t := range s.later {
		if t.Before(due) {
			due = t
		}
	}
	return max(0, due.Sub(now))
}

// Package source owns the set of pods that this node should run. It merges what the manifest directory and the URL ask
// for, and says on one channel what the latest desired pod of each name is. Where a manifest is found, and what it
// means, is for the packages below.
//
// What runs is never lost to a mishap: a file that turns invalid, is emptied or cannot be read keeps its pods, and so
// does a directory that disappears. Of two that ask for one pod the first one has it.
package source

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source/directory"
	"github.com/berth-node/berth/agent/source/manifest"
	"github.com/berth-node/berth/agent/source/url"
)

const (
	defaultRescan = 20 * time.Second
	// While the kernel gives no notifications, reading the directory often is all there is.
	blindRescan = time.Second
)

// Config says where the manifests are and whose they are.
type Config struct {
	Dir      string        // need not exist yet
	NodeName string        // becomes part of each pod's name
	Rescan   time.Duration // 0: 20 s
	// how long a file that goes may take to come back; 0: 20 ms if it was renamed, 5 ms if it was removed
	Quiet  time.Duration
	Log    *slog.Logger
	Report func(Problem) // called from Run when a problem comes, changes or goes (then without errors and warnings)

	// StateDir keeps the last good version of each manifest, so that a file that is invalid while the agent restarts
	// does not cost its pods. Empty: such pods are lost at a restart.
	StateDir string

	// URL has a manifest too, which is asked for with the Header; "" = none.
	URL      string
	Header   http.Header
	URLEvery time.Duration // 0: 20 s

	// Credentials is the directory of the service's credentials (systemd's $CREDENTIALS_DIRECTORY), which Secrets may
	// take values from.
	Credentials string
}

// Problem is what is wrong with a manifest.
type Problem struct {
	File string
	// namespace/name, with the kind before it when it is no pod; "" when it concerns the file or cannot be told
	Pod      string
	Errors   []string
	Warnings []string
	// Kept are the pods, as namespace/name, that run on as the file had them before: it cannot be told any more what it
	// says of them.
	Kept []string
}

// Source merges what the origins of manifests ask for.
type Source struct {
	cfg    Config
	log    *slog.Logger
	reader manifest.Reader

	mu       sync.Mutex
	problems map[string][]Problem // by entry of the directory, "" for the directory itself

	// What follows belongs to the goroutine of Run.
	dir     *directory.Directory
	files   map[string]*file        // by entry of the directory, or the URL
	claims  map[object.Ref][]string // files that claim a key; the first one has it
	queue   *queue
	unsaved map[string]bool // files whose state is to be kept or dropped; false: that this fails was told

	answers  chan url.Answer
	answered bool // the URL was asked once
}

// New returns a Source that has not begun to watch.
func New(cfg Config) *Source {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Rescan <= 0 {
		cfg.Rescan = defaultRescan
	}
	if cfg.Report == nil {
		cfg.Report = func(Problem) {}
	}
	s := &Source{
		cfg: cfg, log: cfg.Log, problems: map[string][]Problem{},
		// Names of nodes are in lower case, those of hosts need not be.
		reader: manifest.Reader{Node: strings.ToLower(cfg.NodeName), Credentials: cfg.Credentials},
		files:  map[string]*file{}, claims: map[object.Ref][]string{}, queue: newQueue(),
		unsaved: map[string]bool{}, answers: make(chan url.Answer),
	}
	s.dir = directory.New(directory.Config{Dir: cfg.Dir, Quiet: cfg.Quiet, Files: entries{s}, Log: cfg.Log})
	return s
}

// Missed counts the changes that a rescan found and no notification had told of.
func (s *Source) Missed() int64 { return s.dir.Missed() }

// Run reads the manifests and sends what changed to out, until ctx ends. It runs once.
func (s *Source) Run(ctx context.Context, out chan<- desired.Update) error {
	if s.cfg.Dir == "" || s.cfg.NodeName == "" {
		return errors.New("read manifests: directory and node name must be given")
	}
	rescan := s.cfg.Rescan
	if err := s.dir.Open(); err != nil {
		s.log.Warn("changes of manifests are noticed a second late", "error", err)
		rescan = min(rescan, blindRescan)
	}
	defer s.dir.Close()
	if s.answered = s.cfg.URL == ""; !s.answered {
		ctx, cancel := context.WithCancel(ctx)
		f := url.New(s.cfg.URL, s.cfg.Header, s.cfg.URLEvery)
		var wait sync.WaitGroup
		wait.Go(func() { f.Run(ctx, s.answers) })
		defer wait.Wait()
		defer cancel()
	}
	s.restore()
	s.dir.Begin()
	s.loop(ctx, out, rescan)
	return nil
}

func (s *Source) loop(ctx context.Context, out chan<- desired.Update, every time.Duration) {
	rescan := time.NewTicker(every)
	defer rescan.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s.dir.Settle(time.Now())
		var send chan<- desired.Update
		next, ok := s.nextUpdate()
		if ok {
			send = out
		}
		// With work at hand nothing is waited for: what can be sent is, and then the next file is read.
		if s.dir.Waiting() {
			select {
			case <-ctx.Done():
				return
			case send <- next:
				s.queue.taken(next)
			case data := <-s.dir.Changes():
				s.dir.Handle(data)
			case a := <-s.answers:
				s.fetched(a)
			default:
				s.dir.Next()
			}
			continue
		}
		if !ok {
			s.save()
		}
		timer.Reset(s.dir.Due(time.Now()))
		select {
		case <-ctx.Done():
			return
		case send <- next:
			s.queue.taken(next)
		case data := <-s.dir.Changes():
			s.dir.Handle(data)
		case a := <-s.answers:
			s.fetched(a)
		case <-timer.C:
		case <-rescan.C:
			s.dir.Rescan()
		}
	}
}

// nextUpdate returns what to send next. The marker comes when nothing of the first scan is left to do.
func (s *Source) nextUpdate() (desired.Update, bool) {
	if s.answered && !s.queue.scanned && s.dir.Read() {
		s.queue.scanned = true
		for key := range s.claims {
			s.settle(key)
		}
	}
	return s.queue.head()
}

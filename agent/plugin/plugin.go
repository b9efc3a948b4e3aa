// Package plugin finds the plugins of the node that announce themselves by a socket in the plugin registration
// directory, as kubelet's plugin watcher does: device plugins, drivers of dynamic resources, CSI drivers. What to do
// with one is its kind's handler's to know.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Plugin is what a plugin says of itself.
type Plugin struct {
	Type     string // of the API: CSIPlugin, DevicePlugin, DRAPlugin
	Name     string
	Endpoint string // the socket of its service
	Versions []string
}

// Handler knows one type of plugins.
type Handler interface {
	// Register takes a plugin on, or says why it cannot be taken. It is called again after the plugin, or the agent,
	// was restarted. When ctx ends the plugin's socket has gone: nobody waits for an answer any more.
	Register(context.Context, Plugin) error
	// Deregister lets a plugin go whose socket has gone.
	Deregister(Plugin)
	// Forget is of one that could not be taken.
	Forget(Plugin)
}

// Config is what a [Watcher] works with.
type Config struct {
	Dir      string
	Handlers map[string]Handler // by type
	Log      *slog.Logger
}

// Watcher hears of plugins by their sockets.
type Watcher struct {
	cfg Config
	log *slog.Logger

	// What follows belongs to the goroutine of Run.
	seen map[string]*entry // by path
	wait sync.WaitGroup
}

// entry is one socket.
type entry struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// New returns a Watcher that does nothing before [Watcher.Run].
func New(c Config) *Watcher {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Watcher{cfg: c, log: c.Log, seen: map[string]*entry{}}
}

const dirMode = 0o750

// Run registers plugins until ctx ends and nothing is asked of any of them any more.
func (w *Watcher) Run(ctx context.Context) error {
	defer w.wait.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	clear(w.seen) // of a run before that could not go on
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch plugin registration directory: %w", err)
	}
	defer events.Close()
	if err := w.begun(ctx, events); err != nil {
		return err
	}
	var again <-chan time.Time // nil: the directory is there
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again:
			again, err = nil, w.begun(ctx, events)
		case e := <-events.Events:
			if e.Name == w.cfg.Dir && (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)) {
				w.log.Warn("plugin registration directory was removed by somebody and is made again", "dir", w.cfg.Dir)
				_ = events.Remove(w.cfg.Dir) // of one that was moved away it is still told
				err = w.begun(ctx, events)
				break
			}
			err = w.happened(ctx, events, e)
		case err = <-events.Errors:
			if errors.Is(err, fsnotify.ErrEventOverflow) { // what was missed is looked for
				err = w.walk(ctx, events, w.cfg.Dir)
			}
		}
		if err != nil {
			w.log.Warn("plugins may not be found", "dir", w.cfg.Dir, "error", err)
			again = time.After(retryMax)
		}
	}
}

// begun makes the directory and watches it, lets those plugins go whose sockets are gone, and takes on the others.
func (w *Watcher) begun(ctx context.Context, events *fsnotify.Watcher) error {
	if err := os.MkdirAll(w.cfg.Dir, dirMode); err != nil {
		return fmt.Errorf("make plugin registration directory: %w", err)
	}
	for path := range w.seen {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			w.finish(path)
		}
	}
	return w.walk(ctx, events, w.cfg.Dir)
}

// walk watches a directory with those below it, and takes on what is there.
func (w *Watcher) walk(ctx context.Context, events *fsnotify.Watcher, dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != w.cfg.Dir:
			return nil
		case err != nil:
			return fmt.Errorf("read plugin registration directory: %w", err)
		case path != w.cfg.Dir && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			if err := events.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("watch plugin registration directory: %w", err)
			}
		case d.Type()&fs.ModeSocket != 0 && w.seen[path] == nil:
			w.begin(ctx, path)
		}
		return nil
	})
}

func (w *Watcher) happened(ctx context.Context, events *fsnotify.Watcher, e fsnotify.Event) error {
	if strings.HasPrefix(filepath.Base(e.Name), ".") {
		return nil
	}
	switch {
	case e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename):
		w.finish(e.Name)
	case e.Has(fsnotify.Create):
		w.finish(e.Name) // it is another socket, whatever became of the one before
		return w.walk(ctx, events, e.Name)
	}
	return nil
}

func (w *Watcher) begin(ctx context.Context, socket string) {
	ctx, cancel := context.WithCancel(ctx)
	e := &entry{cancel, make(chan struct{})}
	w.seen[socket] = e
	w.wait.Go(func() {
		defer close(e.ended)
		w.serve(ctx, socket)
	})
}

// finish lets the plugin of a socket go.
func (w *Watcher) finish(socket string) {
	if e := w.seen[socket]; e != nil {
		delete(w.seen, socket)
		e.cancel()
		<-e.ended
	}
}

// How long a plugin may take, and how soon it is asked again that does not answer or could not be taken, by kubelet's
// rule.
const (
	callTimeout  = 10 * time.Second
	retryInitial = 500 * time.Millisecond
	retryMax     = 2 * time.Minute
)

// serve registers the plugin of a socket, and lets it go when ctx ends because the socket has.
func (w *Watcher) serve(ctx context.Context, socket string) {
	said, forget := "", func() {}
	defer func() { forget() }()
	for delay := retryInitial; ctx.Err() == nil; delay = min(2*delay, retryMax) {
		p, err := w.register(ctx, socket)
		h := w.cfg.Handlers[p.Type]
		if err == nil {
			w.log.Info("plugin is registered", "type", p.Type, "name", p.Name, "endpoint", p.Endpoint)
			<-ctx.Done()
			forget = func() { h.Deregister(p) }
			return
		}
		if h != nil {
			forget = func() { h.Forget(p) }
		}
		if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			w.log.Warn("plugin is not registered", "socket", socket, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// maxAnswer is how much a plugin may say of itself, in bytes.
const maxAnswer = 64 << 10

// register asks a plugin who it is, has it taken on, and tells it what came of that.
func (w *Watcher) register(ctx context.Context, socket string) (Plugin, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithMaxHeaderListSize(maxAnswer), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return Plugin{}, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return Plugin{}, fmt.Errorf("ask who it is: %w", err)
	}
	p := Plugin{Type: info.GetType(), Name: info.GetName(), Endpoint: info.GetEndpoint(), Versions: info.GetSupportedVersions()}
	if p.Endpoint == "" {
		p.Endpoint = socket
	}
	refused := w.take(ctx, p)
	status := &registerapi.RegistrationStatus{PluginRegistered: refused == nil}
	if refused != nil {
		status.Error = refused.Error()
	}
	if _, err := client.NotifyRegistrationStatus(ctx, status); err != nil && refused == nil {
		w.cfg.Handlers[p.Type].Deregister(p)
		return p, fmt.Errorf("tell it that it is registered: %w", err)
	}
	return p, refused
}

func (w *Watcher) take(ctx context.Context, p Plugin) error {
	h := w.cfg.Handlers[p.Type]
	switch {
	case h == nil:
		return fmt.Errorf("plugins of type %.100q are not supported by this agent", p.Type)
	case p.Name == "":
		return errors.New("it has no name")
	case !filepath.IsAbs(p.Endpoint):
		return fmt.Errorf("endpoint %.100q: must be the absolute path of its socket", p.Endpoint)
	}
	return h.Register(ctx, p)
}

// Package handler says what runs the containers of a pod: the runtime handlers that RuntimeClasses name, and the
// executables behind those that are another OCI runtime.
package handler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/berth-node/berth/cri/oplock"
)

// Kind is what a handler makes of a container.
type Kind string

const (
	BuiltIn  Kind = "built-in" // libcontainer, in the helper
	External Kind = "external" // an executable with runc's command line
	Wasm     Kind = "wasm"     // libcontainer with an interpreter of WebAssembly as the process
)

// Handler is one of the ways to run a pod. A pod keeps the one it was started with, whatever becomes of the
// configuration.
type Handler struct {
	Name string // "" is the one of pods that name none
	Kind Kind
	OCI  *OCI   `json:",omitempty"` // of an external one
	Wasm string `json:",omitempty"` // the interpreter's binary
}

// OCI is an executable that is another OCI runtime.
type OCI struct {
	Path string   // absolute
	Args []string `json:",omitempty"` // before each of its commands
	Root string   // where it keeps its state
	// CgroupV1 says that the v2 side of a hybrid cgroup layout is to be hidden from it, see [Set.NeedsCgroupV1].
	CgroupV1 bool `json:",omitempty"`
	// Systemd says that cgroups are named as units of systemd, which shall make them.
	Systemd bool `json:",omitempty"`
}

// Command is what every command of the runtime begins with.
func (o *OCI) Command() []string {
	out := append(append([]string{o.Path}, o.Args...), "--root", o.Root)
	if o.Systemd {
		out = append(out, "--systemd-cgroup")
	}
	return out
}

// ErrUnknown says that no handler has the name.
var ErrUnknown = errors.New("no runtime for this handler is configured")

// Config is where handlers come from. Places are absolute paths.
type Config struct {
	File     string // see [Parse]; "" = automatic ones only
	StateDir string // runtimes without a root of their own keep their state in a directory of their name here
	Wasm     string // the interpreter that wasm handlers use unless they name one
	LookPath func(string) (string, error)
}

// Set is the handlers there are.
type Set struct {
	byName map[string]Handler

	mu    sync.Mutex
	asked map[string]*answers // by the path of the runtime
}

// answers are what a runtime has said of itself, nil: not yet. Who has the lock asks, and the others wait for as long
// as they want to.
type answers struct {
	lock     oplock.Lock
	features *Features
	version  *string
}

// answersOf locks what the runtime at a path has said.
func (s *Set) answersOf(ctx context.Context, path string) (*answers, error) {
	s.mu.Lock()
	a := s.asked[path]
	if a == nil {
		a = &answers{lock: oplock.New()}
		s.asked[path] = a
	}
	s.mu.Unlock()
	return a, a.lock.Lock(ctx)
}

// Open reads the configuration. Without one, and with one that does not say otherwise, crun and runc are handlers where
// they are found in the PATH, and wasm where its interpreter is installed: the names that RuntimeClasses have
// elsewhere, too.
func Open(c Config) (*Set, error) {
	f := &file{}
	if c.File != "" {
		b, err := os.ReadFile(c.File)
		if err != nil {
			return nil, fmt.Errorf("read runtime handlers: %w", err)
		}
		if f, err = parse(b); err != nil {
			return nil, fmt.Errorf("runtime handlers of %s: %w", c.File, err)
		}
	}
	s := &Set{byName: map[string]Handler{}, asked: map[string]*answers{}}
	if f.Automatic == nil || *f.Automatic {
		for _, name := range []string{"crun", "runc"} {
			if path, err := c.LookPath(name); err == nil && filepath.IsAbs(path) {
				s.add(Handler{Name: name, Kind: External, OCI: &OCI{Path: path, Root: filepath.Join(c.StateDir, name)}})
			}
		}
		if _, err := os.Stat(c.Wasm); err == nil {
			s.add(Handler{Name: string(Wasm), Kind: Wasm, Wasm: c.Wasm})
		}
	}
	for i, e := range f.Handlers {
		h, err := e.handler(c)
		if err != nil {
			return nil, fmt.Errorf("runtime handlers of %s: handlers[%d].%w", c.File, i, err)
		}
		s.add(h)
	}
	base := Handler{Kind: BuiltIn}
	if f.Default != "" {
		h, ok := s.byName[f.Default]
		if !ok {
			return nil, fmt.Errorf("runtime handlers of %s: default: there is no handler %q, only %q", c.File, f.Default, slices.Sorted(maps.Keys(s.byName)))
		}
		base = h
		base.Name = ""
	}
	s.add(base)
	return s, nil
}

func (s *Set) add(h Handler) { s.byName[h.Name] = h }

// Get finds a handler by its name, "" the default one. [ErrUnknown] says that there is none.
func (s *Set) Get(name string) (Handler, error) {
	h, ok := s.byName[name]
	if !ok {
		return Handler{}, fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	return h, nil
}

// All returns all handlers, the default one first.
func (s *Set) All() []Handler {
	var out []Handler
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		out = append(out, s.byName[name])
	}
	return out
}

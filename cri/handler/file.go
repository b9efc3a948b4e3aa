package handler

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// file is the configuration as people write it:
//
//	default: crun          # of pods that name no handler; berth's own unless given
//	automatic: false       # no handlers but these; true unless given
//	handlers:
//	- name: kata           # as RuntimeClasses name it
//	  type: external       # external (unless given), built-in or wasm
//	  path: /opt/kata/run  # external: a path, or a name in the PATH; wasm: another interpreter
//	  args: [--debug]      # external: before each of its commands
//	  root: /run/kata      # external: where it keeps its state
type file struct {
	Default   string  `json:"default"`
	Automatic *bool   `json:"automatic"`
	Handlers  []entry `json:"handlers"`
}

type entry struct {
	Name string   `json:"name"`
	Type Kind     `json:"type"`
	Path string   `json:"path"`
	Args []string `json:"args"`
	Root string   `json:"root"`
}

// parse decodes and checks what can be checked without the machine.
func parse(b []byte) (*file, error) {
	f := &file{}
	doc, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return nil, err
	}
	// Unlike the YAML library's own, these errors say where the field is.
	strict, err := json.UnmarshalStrict(doc, f)
	if err = errors.Join(append(strict, err)...); err != nil {
		return nil, err
	}
	seen := map[string]int{}
	var errs []error
	for i, e := range f.Handlers {
		if first, ok := seen[e.Name]; ok {
			errs = append(errs, fmt.Errorf("handlers[%d].name: %q is that of handlers[%d] already", i, e.Name, first))
		}
		seen[e.Name] = i
		if err := e.check(); err != nil {
			errs = append(errs, fmt.Errorf("handlers[%d].%w", i, err))
		}
	}
	return f, errors.Join(errs...)
}

// check's errors begin with the name of the field.
func (e entry) check() error {
	// What the API server demands of a RuntimeClass's handler. It is a directory's name here, too.
	if m := validation.IsDNS1123Label(e.Name); len(m) > 0 {
		return fmt.Errorf("name: %q: %s", e.Name, strings.Join(m, "; "))
	}
	none := func(of Kind) error {
		switch {
		case len(e.Args) > 0:
			return fmt.Errorf("args: a handler of type %s has none", of)
		case e.Root != "":
			return fmt.Errorf("root: a handler of type %s has none", of)
		}
		return nil
	}
	switch e.Type {
	case External, "":
		return e.checkExternal()
	case BuiltIn:
		if e.Path != "" {
			return fmt.Errorf("path: a handler of type %s has none", BuiltIn)
		}
		return none(BuiltIn)
	case Wasm:
		if e.Path != "" && !filepath.IsAbs(e.Path) {
			return fmt.Errorf("path: %q: must be absolute", e.Path)
		}
		return none(Wasm)
	}
	return fmt.Errorf("type: %q: must be %s, %s or %s", e.Type, External, BuiltIn, Wasm)
}

func (e entry) checkExternal() error {
	if e.Path == "" {
		return errors.New("path: an external runtime needs one")
	}
	if strings.Contains(e.Path, "/") && !filepath.IsAbs(e.Path) {
		return fmt.Errorf("path: %q: must be absolute, or a name in the PATH", e.Path)
	}
	if e.Root != "" && (!filepath.IsAbs(e.Root) || filepath.Clean(e.Root) == "/") {
		return fmt.Errorf("root: %q: must be absolute", e.Root)
	}
	for i, a := range e.Args {
		switch name, _, _ := strings.Cut(a, "="); name {
		case "--root", "-root":
			return fmt.Errorf("args[%d]: %q: use root", i, a)
		case "--log", "-log", "--log-format", "-log-format", "--systemd-cgroup", "-systemd-cgroup":
			return fmt.Errorf("args[%d]: %q: berth sets this itself", i, a)
		case "":
			return fmt.Errorf("args[%d]: must not be empty", i)
		}
		if strings.IndexByte(a, 0) >= 0 {
			return fmt.Errorf("args[%d]: %q holds a NUL byte", i, a)
		}
	}
	return nil
}

// handler is what the entry means on this machine.
func (e entry) handler(c Config) (Handler, error) {
	h := Handler{Name: e.Name, Kind: e.Type}
	switch e.Type {
	case BuiltIn:
		return h, nil
	case Wasm:
		h.Wasm = c.Wasm
		if e.Path != "" {
			h.Wasm = e.Path
		}
		if _, err := c.LookPath(h.Wasm); err != nil {
			return h, fmt.Errorf("path: find the interpreter: %w", err)
		}
		return h, nil
	}
	h.Kind = External
	path, err := c.LookPath(e.Path)
	if err != nil {
		return h, fmt.Errorf("path: %w", err)
	}
	if !filepath.IsAbs(path) {
		return h, fmt.Errorf("path: %q is found relative to the working directory", path)
	}
	h.OCI = &OCI{Path: path, Args: e.Args, Root: filepath.Join(c.StateDir, e.Name)}
	if e.Root != "" {
		h.OCI.Root = filepath.Clean(e.Root)
	}
	return h, nil
}

package handler

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// look finds what is in a pretended PATH.
func look(have ...string) func(string) (string, error) {
	return func(name string) (string, error) {
		if strings.Contains(name, "/") {
			return name, nil
		}
		if slices.Contains(have, name) {
			return "/usr/bin/" + name, nil
		}
		return "", fmt.Errorf("%q: %w", name, fs.ErrNotExist)
	}
}

func open(t *testing.T, text string, have ...string) (*Set, error) {
	t.Helper()
	dir := t.TempDir()
	c := Config{StateDir: "/run/x", Wasm: filepath.Join(dir, "berth-wasm"), LookPath: look(have...)}
	if err := os.WriteFile(c.Wasm, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if text != "" {
		c.File = filepath.Join(dir, "h.yaml")
		if err := os.WriteFile(c.File, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Open(c)
}

func TestAutomaticHandlers(t *testing.T) {
	s, err := open(t, "", "crun")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, h := range s.All() {
		names = append(names, h.Name)
	}
	if !slices.Equal(names, []string{"", "crun", "wasm"}) {
		t.Errorf("got %q", names)
	}
	if h, err := s.Get(""); err != nil || h.Kind != BuiltIn {
		t.Errorf("got %+v, %v", h, err)
	}
	if _, err := s.Get("runc"); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	h, err := s.Get("crun")
	if err != nil || !slices.Equal(h.OCI.Command(), []string{"/usr/bin/crun", "--root", "/run/x/crun"}) {
		t.Errorf("got %+v, %v", h, err)
	}
	h.OCI.Systemd = true
	if c := h.OCI.Command(); !slices.Equal(c, []string{"/usr/bin/crun", "--root", "/run/x/crun", "--systemd-cgroup"}) {
		t.Errorf("got %v", c)
	}
}

func TestConfiguredHandlers(t *testing.T) {
	s, err := open(t, `
default: fast
automatic: false
handlers:
- {name: fast, path: crun, args: [--debug], root: /run/fast}
- {name: own, type: built-in}
- {name: web, type: wasm}
`, "crun", "runc")
	if err != nil {
		t.Fatal(err)
	}
	if h, err := s.Get(""); err != nil || !slices.Equal(h.OCI.Command(), []string{"/usr/bin/crun", "--debug", "--root", "/run/fast"}) {
		t.Errorf("default: got %+v, %v", h, err)
	}
	if h, err := s.Get("own"); err != nil || h.Kind != BuiltIn {
		t.Errorf("own: got %+v, %v", h, err)
	}
	if h, err := s.Get("web"); err != nil || h.Kind != Wasm || filepath.Base(h.Wasm) != "berth-wasm" {
		t.Errorf("web: got %+v, %v", h, err)
	}
	if _, err := s.Get("runc"); err == nil {
		t.Error("runc is there, though nothing is to be automatic")
	}
}

func TestErrorsNameTheField(t *testing.T) {
	for text, want := range map[string]string{
		"handlers: [{name: a, pth: /x}]":                              `unknown field "handlers[0].pth"`,
		"handler: []":                                                 `unknown field "handler"`,
		"handlers: [{name: A/b, path: /x}]":                           `handlers[0].name: "A/b"`,
		"handlers: [{path: /x}]":                                      `handlers[0].name: ""`,
		"handlers: [{name: a}]":                                       "handlers[0].path: an external runtime needs one",
		"handlers: [{name: a, path: x/y}]":                            `handlers[0].path: "x/y": must be absolute`,
		"handlers: [{name: a, path: nosuch}]":                         `handlers[0].path: "nosuch"`,
		"handlers: [{name: a, type: kata}]":                           `handlers[0].type: "kata": must be external, built-in or wasm`,
		"handlers: [{name: a, type: wasm, root: /x}]":                 "handlers[0].root: a handler of type wasm has none",
		"handlers: [{name: a, path: /x, root: x}]":                    `handlers[0].root: "x": must be absolute`,
		"handlers: [{name: a, path: /x, args: [--root=/y]}]":          `handlers[0].args[0]: "--root=/y": use root`,
		"handlers: [{name: a, path: /x, args: [-d, --log, /y]}]":      `handlers[0].args[1]: "--log": berth sets this itself`,
		"handlers: [{name: a, path: /x}, {name: a, path: /y}]":        `handlers[1].name: "a" is that of handlers[0] already`,
		"default: b\nhandlers: [{name: a, path: /x}]":                 `default: there is no handler "b"`,
		"handlers: [{name: a, path: /x, args: 7}]":                    "handlers",
		"handlers: [{name: a, path: /x}]\nhandlers: [{name: a}]":      `key "handlers" already set`,
		"handlers: [{name: a, type: built-in, path: /usr/bin/runc}]":  "handlers[0].path: a handler of type built-in has none",
		"handlers: [{name: a, type: wasm, path: bin/wasm}]":           `handlers[0].path: "bin/wasm": must be absolute`,
		"handlers: [{name: a, path: /x, args: [\"\"]}]":               "handlers[0].args[0]: must not be empty",
		"handlers: [{name: a, type: wasm, args: [--x], path: /wasm}]": "handlers[0].args: a handler of type wasm has none",
	} {
		if _, err := open(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
}

func TestReadFeatures(t *testing.T) {
	got := readFeatures([]byte(`{"mountOptions":["ro","rro"],"linux":{"namespaces":["user"],"mountExtensions":{"idmap":{"enabled":true}}}}`))
	if got != (Features{RecursiveReadOnly: true, UserNamespaces: true}) {
		t.Errorf("got %+v", got)
	}
	for _, text := range []string{"", "{}", "[]", `{"linux":{}}`} {
		if got := readFeatures([]byte(text)); got != (Features{}) {
			t.Errorf("%s: got %+v", text, got)
		}
	}
}

func TestLastLine(t *testing.T) {
	for in, want := range map[string]string{
		"":       "",
		"a\nb\n": "b",
		`time="x" level=error msg="no \"c\""` + "\n": `no "c"`,
	} {
		if got := lastLine(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("default: a\nhandlers:\n- {name: a, path: /x, args: [-d]}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parse(b)
		if err == nil {
			for _, e := range got.Handlers {
				if e.check() != nil {
					t.Errorf("%+v is taken", e)
				}
			}
		}
	})
}

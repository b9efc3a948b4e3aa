package keeper_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/plain"
)

var machine = sync.OnceValues(func() (plain.Machine, error) {
	h, err := cgroups.Open("")
	if err != nil {
		return plain.Machine{}, err
	}
	return plain.MachineOf(h), nil
})

// ordinary has a container started in C where that can be.
func (p *pod) ordinary(c *keeper.Container, spec *specs.Spec) {
	p.t.Helper()
	m, err := machine()
	if err == nil && scoped() {
		m, err = p.withScopes(m)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	// As the agent has it, which reads what it has written.
	b, err := json.Marshal(spec)
	if err != nil {
		p.t.Fatal(err)
	}
	var read specs.Spec
	if err := json.Unmarshal(b, &read); err != nil {
		p.t.Fatal(err)
	}
	s, err := plain.Of(&read, m)
	if err == nil {
		err = s.Prepare(&read, c.Bundle, c.StateDir)
	}
	if err != nil {
		p.t.Log(err)
		return
	}
	c.Plain = s
	c.Left = func(why string) { p.t.Log("left to libcontainer: ", why) }
}

// TestPlainRuns: an ordinary container is started without libcontainer, which leaves a directory for each of its own.
func TestPlainRuns(t *testing.T) {
	p := newPod(t)
	c := p.container(p.spec("c", "/bin/sh", "-c", "exit 3"))
	if c.Plain == nil {
		t.Skip("nothing is ordinary on this machine")
	}
	if _, err := p.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if e := p.exit(c.ID); e.Code != 3 {
		t.Errorf("exit code is %d", e.Code)
	}
	if _, err := os.Stat(filepath.Join(c.StateDir, c.ID)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is libcontainer's: %v", err)
	}
}

// TestPlainIsLeft: what turns out not to be ordinary libcontainer starts, and tells what is wrong with it.
func TestPlainIsLeft(t *testing.T) {
	p := newPod(t)
	if err := os.Remove(filepath.Join(p.rootfs, "dev")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("tmp", filepath.Join(p.rootfs, "dev")); err != nil {
		t.Fatal(err)
	}
	for _, terminal := range []bool{false, true} {
		s := p.spec("c", "/bin/sh", "-c", "test -t 0 && exit 5; exit 4")
		s.Process.Terminal = terminal
		c := p.container(s)
		if c.Plain == nil {
			t.Skip("nothing is ordinary on this machine")
		}
		left, want := "", 4
		if terminal {
			want = 5
		}
		c.Left = func(why string) { left = why }
		if _, err := p.Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if e := p.exit(c.ID); e.Code != want || left == "" {
			t.Errorf("exit code is %d and not %d, left for %q", e.Code, want, left)
		}
	}
	c := p.container(p.spec("c", "no-such-program"))
	_, err := p.Run(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), `exec: "no-such-program": executable file not found in $PATH`) {
		t.Errorf("it fails with %v", err)
	}
}

package plane

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Common is a control plane that several tests of a package share. It starts with the first that asks for it. Who owns
// it stops it after the tests.
type Common struct {
	once  sync.Once
	dir   string
	plane *Plane // nil: none has started
}

// Get is the control plane. The flags are those of the first who asks; all ask with the same.
func (c *Common) Get(t *testing.T, binary string, flags ...string) *Plane {
	t.Helper()
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("%s is not built: make control", binary)
	}
	c.once.Do(func() { c.start(t, binary, flags) })
	if c.plane == nil {
		t.Fatal("the control plane that tests share has not started: another test says why")
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the control plane that tests share has written:\n%s", c.plane.Output)
		}
	})
	return c.plane
}

// start starts it. A test that gives up ends here; the others find none.
func (c *Common) start(t *testing.T, binary string, flags []string) {
	dir, err := os.MkdirTemp("", "control-plane-")
	if err != nil {
		t.Fatal(err)
	}
	c.dir = dir
	p := &Plane{Dir: dir, binary: binary, port: "0", flags: flags, run: run}
	ready := false
	defer func() {
		if !ready {
			p.Kill()
			t.Logf("the control plane that tests share has written:\n%s", p.Output)
		}
	}()
	p.launch(t)
	p.connect(t)
	c.plane, ready = p, true
}

// Stop asks it to end, and waits until it has. It is an error if it does not, ends otherwise than it is asked to, or
// has ended by itself.
func (c *Common) Stop() error {
	if c.dir == "" {
		return nil
	}
	return errors.Join(c.end(), os.RemoveAll(c.dir))
}

func (c *Common) end() error {
	if c.plane == nil {
		return nil
	}
	p := c.plane
	select {
	case <-p.Ended:
		return fmt.Errorf("it has ended by itself: %s", p.Process.ProcessState)
	default:
	}
	if err := p.Process.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("ask it to end: %w", err)
	}
	select {
	case <-p.Ended:
	case <-time.After(patience):
		p.Kill()
		return fmt.Errorf("it does not end within %s when it is asked to", patience)
	}
	if state := p.Process.ProcessState; !state.Success() {
		return fmt.Errorf("asked to end, it has ended with %s", state)
	}
	return nil
}

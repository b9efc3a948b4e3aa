//go:build linux && amd64

package control

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	planes "github.com/berth-node/berth/test/plane"
)

// startDebugged is start under a debugger, which counts from the call of the function that is returned on.
func startDebugged(t *testing.T, d *debugger, dir string, flags ...string) (p *plane, count func()) {
	t.Helper()
	d.idle.Store(true)
	p = known(planes.StartBy(t, d.start, binary, dir, flags...), metav1.NamespaceDefault)
	return p, func() { d.idle.Store(false) }
}

// sample is which of so many steps a test is for: each of them in a long one.
func sample(t *testing.T, all, every int) []int {
	t.Helper()
	first := 1
	if os.Getenv("BERTH_TEST_LONG") != "" {
		every = 1
	} else {
		first += rand.IntN(every)
	}
	var out []int
	for step := first; step <= all; step += every {
		out = append(out, step)
	}
	t.Logf("of %d steps killed before %v", all, out)
	return out
}

// TestTokenKilled kills the making of a token for a member before each thing that it sends. What is left of it has an
// end, or all that there is to be.
func TestTokenKilled(t *testing.T) {
	t.Parallel()
	at := memberFlags{"127.0.0.1", "192.0.2.1", ports(t, "127.0.0.1")}
	p := at.start(t, t.TempDir(), at.peer()...)
	p.write(t, "kept")
	command := []string{"token", "create", "--member", "--ttl", "0"}
	ended, whole := 0, 0
	atEachStep(t, sent, p.dir, command, func(step int) {
		var left struct {
			Tokens []struct {
				ID        string
				ExpiresAt *string
			}
		}
		if err := json.Unmarshal([]byte(p.run(t, "token", "list", "-o", "json")), &left); err != nil {
			t.Fatal(err)
		}
		for _, token := range left.Tokens {
			if err := goesWith(t, p, token.ID); err != nil && token.ExpiresAt == nil {
				t.Errorf("step %d: a token has no end, and not all that goes with it: %v", step, err)
			}
			if token.ExpiresAt == nil {
				whole++
			} else {
				ended++
			}
			if err := p.client.CoreV1().Secrets("kube-system").Delete(t.Context(), "bootstrap-token-"+token.ID, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	if ended == 0 || whole > ended {
		t.Errorf("%d tokens had an end, and %d none", ended, whole)
	}
	other := memberFlags{"127.0.0.2", "192.0.2.2", ports(t, "127.0.0.2")}
	other.start(t, other.join(t, p, t.TempDir())).has(t, "kept")
}

// goesWith fails where not all is there that goes with a member's token.
func goesWith(t *testing.T, p *plane, id string) error {
	t.Helper()
	const in = "kube-system"
	name := "berth-control-member-" + id
	_, keys := p.client.CoreV1().Secrets(in).Get(t.Context(), name, metav1.GetOptions{})
	_, role := p.client.RbacV1().Roles(in).Get(t.Context(), name, metav1.GetOptions{})
	_, binding := p.client.RbacV1().RoleBindings(in).Get(t.Context(), name, metav1.GetOptions{})
	return errors.Join(keys, role, binding)
}

// TestRotateCommandKilled kills the commands of a rotation before each thing that they send to etcd. Run again they
// come to their end; until --finish has begun who has what was there before gets through.
func TestRotateCommandKilled(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	begin := []string{"certs", "rotate-ca", "--begin", "--authority", "ca"}
	finish := []string{"certs", "rotate-ca", "--finish", "--force", "--authority", "ca"}
	rotations := 0
	var old rotated
	check := func(step int) {
		if err := p.ask(t, old.trust, old.certs, ""); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		p.run(t, begin...)
		_, _, _ = steps(t, sent, step, p.dir, finish...) // it has a few fewer
		p.run(t, finish...)
		endsRotated(t, p, old)
		rotations++
		old = p.credentials(t)
	}
	old = p.credentials(t)
	atEachStep(t, sent, p.dir, begin, check)
	p.run(t, finish...)
	endsRotated(t, p, old)
	t.Logf("%d rotations", rotations+1)
}

// endsRotated holds that a rotation has ended: what is new is taken, what is old is not, and nothing is left.
func endsRotated(t *testing.T, p *plane, old rotated) {
	t.Helper()
	now := p.credentials(t)
	if err := p.ask(t, now.trust, now.certs, ""); err != nil {
		t.Errorf("what is new is refused: %v", err)
	}
	until(t, "what is old is refused", func() error {
		if err := p.ask(t, now.trust, old.certs, ""); !apierrors.IsUnauthorized(err) {
			return cmpErr(err)
		}
		return nil
	})
	for name := range files(t, filepath.Join(p.dir, "pki")) {
		if strings.Contains(name, ".next.") || strings.Contains(name, ".old.") || strings.Contains(name, ".bad-") || strings.HasSuffix(name, ".new") {
			t.Errorf("there is left %s", name)
		}
	}
	if _, err := os.Stat(filepath.Join(p.dir, "admin.kubeconfig.new")); err == nil {
		t.Error("there is left a part of the administrator's file")
	}
}

// during runs a command for as long as the server runs, and returns whether it has succeeded.
func (p *plane) during(t *testing.T, args ...string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		select {
		case <-p.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	return exec.CommandContext(ctx, binary, append(slices.Clip(args), "--data-dir", p.dir)...).Run() == nil
}

// TestRotateServerKilled kills a server before changes that it makes to its files in a rotation. Until --finish has
// begun who has what was there before gets through at the next start; the rotation comes to its end there.
func TestRotateServerKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	of := func(path string) bool {
		return below(filepath.Join(dir, "pki"))(path) || below(filepath.Join(dir, "admin"))(path)
	}
	begin := []string{"certs", "rotate-ca", "--begin", "--authority", "ca,sa"}
	finish := []string{"certs", "rotate-ca", "--finish", "--force", "--authority", "ca,sa"}
	d := &debugger{of: of}
	p, count := startDebugged(t, d, dir)
	count()
	p.run(t, begin...)
	p.run(t, finish...)
	p.stop(t)
	for _, last := range sample(t, d.n, 16) {
		d = &debugger{of: of, last: last}
		p, count = startDebugged(t, d, dir)
		old, token := p.credentials(t), p.token(t)
		count()
		begun := p.during(t, begin...)
		if begun && p.during(t, finish...) {
			_ = p.cmd.Process.Signal(unix.SIGTERM) // it had fewer steps, or comes to the last of them now
		}
		select {
		case <-p.ended:
		case <-time.After(patience):
			t.Fatalf("step %d: the server has not ended", last)
		}
		p = start(t, dir)
		if !begun {
			if err := errors.Join(p.ask(t, old.trust, old.certs, ""), p.ask(t, old.trust, nil, token)); err != nil {
				t.Errorf("step %d: %v", last, err)
			}
			p.run(t, begin...)
		}
		p.run(t, finish...)
		endsRotated(t, p, old)
		if err := p.ask(t, p.credentials(t).trust, nil, token); !apierrors.IsUnauthorized(err) {
			t.Errorf("step %d: the old token: %v", last, cmpErr(err))
		}
		p.stop(t)
	}
}

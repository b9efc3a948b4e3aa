package credential

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	credentialv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/berth-node/berth/internal/excerpt"
	"github.com/berth-node/berth/internal/monitor"
)

const (
	// askTimeout ends a plugin that hangs, so that the pull can be reported and tried again.
	askTimeout = time.Minute
	// maxAnswer is far more than any credentials take.
	maxAnswer = 1 << 20
	// maxComplaint is what is told of a plugin's standard error.
	maxComplaint = 1 << 10
)

// ask runs the plugin.
func (p *provider) ask(ctx context.Context, img string) (*credentialv1.CredentialProviderResponse, error) {
	in, err := json.Marshal(credentialv1.CredentialProviderRequest{TypeMeta: requestType, Image: img})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("no answer within %v", askTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	out, complaint := excerpt.First{Most: maxAnswer}, excerpt.First{Most: maxComplaint}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &complaint
	// The later of two variables with one name wins.
	cmd.Env = append(os.Environ(), p.env...)
	// Whatever the plugin has started must end with it, or it would hold the pipes open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	p.log.Debug("asking for credentials", "provider", p.name, "image", img)
	if err := monitor.Fork(cmd.Run); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if said := strings.TrimSpace(string(complaint.Bytes)); said != "" {
			return nil, fmt.Errorf("run %s: %w: %s", p.path, err, said)
		}
		return nil, fmt.Errorf("run %s: %w", p.path, err)
	}
	if out.Over {
		return nil, fmt.Errorf("answer of %s: it has more than %d bytes", p.name, maxAnswer)
	}
	r, err := decode(out.Bytes)
	if err != nil {
		return nil, fmt.Errorf("answer of %s: %w", p.name, err)
	}
	return r, nil
}

// decode reads an answer. What is in it is not told in errors: it may be a secret.
func decode(b []byte) (*credentialv1.CredentialProviderResponse, error) {
	var kind metav1.TypeMeta
	if json.Unmarshal(b, &kind) != nil {
		return nil, errors.New("it is not JSON")
	}
	if kind != responseType {
		return nil, fmt.Errorf("%q of %q: want %s of %s", kind.Kind, kind.APIVersion, responseType.Kind, responseType.APIVersion)
	}
	var r credentialv1.CredentialProviderResponse
	if json.Unmarshal(b, &r) != nil {
		return nil, errors.New("it is not a " + responseType.Kind)
	}
	return &r, nil
}

// flights makes one of all questions with the same key at the same time. Who waits may give up by itself; the question
// goes on until all have.
type flights struct {
	mu sync.Mutex
	of map[string]*flight
}

type flight struct {
	waiting int
	cancel  context.CancelFunc
	done    chan struct{}
	auth    map[string]credentialv1.AuthConfig
	err     error
}

func (g *flights) do(ctx context.Context, key string, fn func(context.Context) (map[string]credentialv1.AuthConfig, error)) (map[string]credentialv1.AuthConfig, error) {
	g.mu.Lock()
	f := g.of[key]
	if f == nil {
		run, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &flight{cancel: cancel, done: make(chan struct{})}
		if g.of == nil {
			g.of = map[string]*flight{}
		}
		g.of[key] = f
		go func() {
			defer cancel()
			f.auth, f.err = fn(run)
			g.forget(key, f)
			close(f.done)
		}()
	}
	f.waiting++
	g.mu.Unlock()
	select {
	case <-f.done:
		return f.auth, f.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	if f.waiting--; f.waiting == 0 {
		f.cancel()
		if g.of[key] == f {
			delete(g.of, key)
		}
	}
	g.mu.Unlock()
	return nil, context.Cause(ctx)
}

func (g *flights) forget(key string, f *flight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of[key] == f {
		delete(g.of, key)
	}
}

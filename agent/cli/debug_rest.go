package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/api/client"
)

// passed is what has gone through a terminal: what came of the container, as far as it is kept, and whether anything
// was typed. A quick command has written before the terminal is there, or has even ended; its log has all of it.
type passed struct {
	mu    sync.Mutex
	kept  bytes.Buffer
	total int64
	typed bool
}

// keptMost bounds what is kept of the output: who has written more has not been quick.
const keptMost = 64 << 10

type through func([]byte) (int, error)

func (t through) Read(p []byte) (int, error)  { return t(p) }
func (t through) Write(p []byte) (int, error) { return t(p) }

func (s *passed) in(r io.Reader) io.Reader {
	return through(func(p []byte) (int, error) {
		n, err := r.Read(p)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.typed = s.typed || n > 0
		return n, err
	})
}

func (s *passed) out(w io.Writer) io.Writer {
	return through(func(p []byte) (int, error) {
		s.mu.Lock()
		s.total += int64(len(p))
		if s.kept.Len() < keptMost {
			s.kept.Write(p)
		}
		s.mu.Unlock()
		return w.Write(p)
	})
}

// endPatience is how long the agent may take to tell that a container has ended, once its terminal has.
const endPatience = 10 * time.Second

// rest prints of a container that has ended what the terminal was too late for. err is how the terminal ended.
func (s *passed) rest(cmd *cobra.Command, cl *client.Client, p *corev1.Pod, name string, notes io.Writer,
	err error,
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total > keptMost || s.total > 0 && (s.typed || err != nil) {
		return err // it was there in time
	}
	if !hasEnded(cmd.Context(), cl, p, name) {
		return err
	}
	var log bytes.Buffer
	all := client.LogOptions{Tail: -1, Limit: keptMost + s.total + 1}
	if logErr := cl.Logs(cmd.Context(), keyOf(p), name, all, &log); logErr != nil {
		return errors.Join(err, logErr)
	}
	head, ok := bytes.CutSuffix(log.Bytes(), s.kept.Bytes())
	switch {
	case !ok || len(head) == 0:
		return nil
	case s.total > 0:
		fmt.Fprintln(notes, "What it wrote before the terminal was there:")
	}
	if _, err := cmd.OutOrStdout().Write(head); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// hasEnded says whether the container has ended, or is found to within a moment.
func hasEnded(ctx context.Context, cl *client.Client, p *corev1.Pod, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	err := cl.WatchPods(ctx, p.Namespace, func(t watch.EventType, q *corev1.Pod) error {
		switch {
		case q.UID != p.UID:
			return nil
		case t == watch.Deleted:
			return errors.New("gone")
		case stateOf(q, name).Terminated != nil:
			return errFound
		}
		return nil
	})
	return errors.Is(err, errFound)
}

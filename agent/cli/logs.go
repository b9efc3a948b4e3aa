package cli

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/internal/commandline"
)

type logsOptions struct {
	target
	client.LogOptions
	container string
	every     bool
	prefix    bool
}

func (c *commands) logs() *cobra.Command {
	o := logsOptions{}
	cmd := &cobra.Command{
		Use: "logs POD", Short: "Print what a container has written",
		Long:    "Print what a container has written. Files that were rotated away are part of it as long as they are there.",
		Example: "  berth logs web\n  berth logs -f --tail 20 web -c httpd\n  berth logs --previous web",
		Args:    cobra.RangeArgs(1, 2), ValidArgsFunction: c.onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				o.container = args[1]
			}
			return c.runLogs(cmd, o, args[0])
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.container, "container", "c", "", "container of the pod")
	f.BoolVar(&o.every, "all-containers", false, "every container of the pod")
	f.BoolVarP(&o.Follow, "follow", "f", false, "go on with what comes, until the container ends")
	f.BoolVarP(&o.Previous, "previous", "p", false, "of the instance before the last restart")
	f.BoolVar(&o.Timestamps, "timestamps", false, "each line with its time")
	f.BoolVar(&o.prefix, "prefix", false, "each line with its pod and container")
	f.Int64Var(&o.Tail, "tail", -1, "last lines only (-1: all)")
	f.DurationVar(&o.Since, "since", 0, "what is younger than this, 5m say")
	f.StringVar(&o.SinceTime, "since-time", "", "what is younger than this time (RFC 3339)")
	f.Int64Var(&o.Limit, "limit-bytes", 0, "bytes at most (0: all)")
	_ = cmd.RegisterFlagCompletionFunc("container", c.containers(&o.target))
	return cmd
}

func (c *commands) runLogs(cmd *cobra.Command, o logsOptions, arg string) error {
	switch {
	case o.Tail < -1:
		return commandline.Usagef("--tail %d: there are not fewer lines than none (-1: all)", o.Tail)
	case o.Limit < 0:
		return commandline.Usagef("--limit-bytes %d: there are not fewer than none (0: all)", o.Limit)
	case o.Since < 0:
		return commandline.Usagef("--since %s: it is how long ago, as 5m", o.Since)
	}
	if o.SinceTime != "" {
		if o.Since != 0 {
			return commandline.Usagef("one of --since and --since-time at most")
		}
		if _, err := time.Parse(time.RFC3339, o.SinceTime); err != nil {
			return commandline.Usagef("--since-time %q: not a time such as 2026-01-31T15:04:05Z", o.SinceTime)
		}
	}
	cl := c.client()
	p, err := o.find(cmd.Context(), cl, arg)
	if err != nil {
		return err
	}
	if o.every {
		return allLogs(cmd, cl, o, p)
	}
	name, err := container(p, o.container, commandline.Visible(cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	return cl.Logs(cmd.Context(), keyOf(p), name, o.LogOptions, o.writer(cmd.OutOrStdout(), p, name))
}

// allLogs prints the containers one after the other, or all at once when they are followed.
func allLogs(cmd *cobra.Command, cl *client.Client, o logsOptions, p *corev1.Pod) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	out := &shared{mu: &mu, w: cmd.OutOrStdout()}
	added := make([]corev1.Container, 0, len(p.Spec.EphemeralContainers))
	for _, e := range p.Spec.EphemeralContainers {
		added = append(added, corev1.Container(e.EphemeralContainerCommon))
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers, added} {
		for _, ct := range list {
			get := func() {
				err := cl.Logs(cmd.Context(), keyOf(p), ct.Name, o.LogOptions, o.writer(out, p, ct.Name))
				mu.Lock()
				defer mu.Unlock()
				if err != nil && first == nil {
					first = err
				}
			}
			if o.Follow {
				wg.Go(get)
			} else {
				get()
			}
		}
	}
	wg.Wait()
	return first
}

func (o *logsOptions) writer(w io.Writer, p *corev1.Pod, container string) io.Writer {
	if !o.prefix {
		return w
	}
	return &prefixer{w: w, prefix: fmt.Sprintf("[pod/%s/%s] ", p.Name, container)}
}

// shared lets several write whole pieces to one writer.
type shared struct {
	mu *sync.Mutex
	w  io.Writer
}

func (s *shared) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

// prefixer begins each line with a prefix.
type prefixer struct {
	w      io.Writer
	prefix string
	mid    bool
}

func (p *prefixer) Write(b []byte) (int, error) {
	buf := make([]byte, 0, len(b)+len(p.prefix)*8)
	for line := range bytes.Lines(b) {
		if !p.mid {
			buf = append(buf, p.prefix...)
		}
		p.mid = line[len(line)-1] != '\n'
		buf = append(buf, line...)
	}
	if _, err := p.w.Write(buf); err != nil {
		return 0, err
	}
	return len(b), nil
}

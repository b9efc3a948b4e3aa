package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/moby/term"
	"github.com/spf13/cobra"
	terminal "golang.org/x/term"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/berth-node/berth/internal/commandline"
)

type execOptions struct {
	target
	container  string
	stdin, tty bool
	quiet      bool
	detachKeys string // of attach
}

func (c *commands) exec() *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use: "exec POD [-it] [-c CONTAINER] -- COMMAND [ARG...]", Short: "Run a command in a container",
		Long:    "Run a command in a container. The exit code is the command's.",
		Example: "  berth exec web -- ls /\n  berth exec -it web -- sh",
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: c.onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return commandline.Usagef("what to run must follow: berth exec %s -- COMMAND", args[0])
			}
			return c.stream(cmd, o, args[0], args[1:])
		},
	}
	o.flags(c, cmd)
	return cmd
}

func (o *execOptions) flags(c *commands, cmd *cobra.Command) {
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.container, "container", "c", "", "container of the pod")
	f.BoolVarP(&o.stdin, "stdin", "i", false, "pass standard input on")
	f.BoolVarP(&o.tty, "tty", "t", false, "with a terminal")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print only what comes from the container")
	_ = cmd.RegisterFlagCompletionFunc("container", c.containers(&o.target))
}

func (c *commands) attach() *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use: "attach POD", Short: "Be the terminal of a running container",
		Long: "Connect to the process that a container runs, as far as its manifest gives it standard input (stdin: true) " +
			"and a terminal (tty: true).\n" +
			"On a terminal, Ctrl-P and Ctrl-Q leave it, and the container runs on.",
		Example: "  berth attach -it shell",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: c.onePod,
		RunE: func(cmd *cobra.Command, args []string) error { return c.stream(cmd, o, args[0], nil) },
	}
	o.flags(c, cmd)
	cmd.Flags().StringVar(&o.detachKeys, "detach-keys", detachKeys,
		"keys that leave the container's terminal, such as ctrl-x or ctrl-p,ctrl-q; empty: none")
	return cmd
}

// stream runs command in the container, or attaches to it without one.
func (c *commands) stream(cmd *cobra.Command, o execOptions, arg string, command []string) error {
	notes := commandline.Visible(cmd.ErrOrStderr())
	if o.quiet {
		notes = io.Discard
	}
	cl := c.client()
	p, err := o.find(cmd.Context(), cl, arg)
	if err != nil {
		return err
	}
	name, err := container(p, o.container, notes)
	if err != nil {
		return err
	}
	if command == nil {
		// A container that has no terminal cannot be given one, and one that has tells its two streams as one.
		has := false
		for _, ct := range p.Spec.Containers {
			has = has || ct.Name == name && ct.TTY
		}
		for _, ct := range p.Spec.EphemeralContainers {
			has = has || ct.Name == name && ct.TTY
		}
		if o.tty && !has {
			fmt.Fprintf(notes, "container %s has no terminal (tty: true in its manifest): going on without one\n", name)
		}
		o.tty = has
		if o.stdin && o.tty {
			fmt.Fprintln(notes, "If you don't see a command prompt, try pressing enter.")
		}
	} else if o.tty && o.stdin && !onTerminal(cmd.InOrStdin()) {
		// The command's output is for a file or another program then, and a terminal would change it.
		fmt.Fprintln(notes, noTerminal)
		o.tty = false
	}
	ctx, restore, so, err := o.streams(cmd, notes)
	if err != nil {
		return err
	}
	defer restore()
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	for _, w := range []*io.Writer{&so.Stdout, &so.Stderr} {
		if *w != nil {
			*w = &whole{w: *w, lost: lost}
		}
	}
	if command == nil && o.stdin && o.tty && o.detachKeys != "" {
		err = o.attached(ctx, notes, &so, func(ctx context.Context) error { return cl.Exec(ctx, keyOf(p), name, nil, so) })
	} else {
		err = cl.Exec(ctx, keyOf(p), name, command, so)
	}
	if l, ok := errors.AsType[*lostOutput](context.Cause(ctx)); ok {
		return l
	}
	return err
}

// streams are those of a command, with the terminal as it needs it.
func (o *execOptions) streams(cmd *cobra.Command, notes io.Writer) (context.Context, func(),
	remotecommand.StreamOptions, error,
) {
	so := remotecommand.StreamOptions{Stdout: cmd.OutOrStdout(), Tty: o.tty}
	if !o.tty {
		so.Stderr = cmd.ErrOrStderr()
	}
	if o.stdin {
		so.Stdin = cmd.InOrStdin()
	}
	ctx, restore, err := o.terminal(cmd, &so, notes)
	return ctx, restore, so, err
}

// lostOutput says why not all that a command has written was written on.
type lostOutput struct{ err error }

func (l *lostOutput) Error() string { return "write the command's output: " + l.err.Error() }
func (l *lostOutput) Unwrap() error { return l.err }

// whole is a writer that ends the stream when something cannot be written: the library that copies drops the rest, and
// the command would seem to have ended well.
type whole struct {
	w    io.Writer
	lost context.CancelCauseFunc
}

// Write implements [io.Writer].
func (o *whole) Write(p []byte) (int, error) {
	if _, err := o.w.Write(p); err != nil {
		o.lost(&lostOutput{err})
	}
	return len(p), nil // the library would write its own line about an error to standard error
}

// attached runs an attachment that keys can end.
func (o *execOptions) attached(ctx context.Context, notes io.Writer, so *remotecommand.StreamOptions,
	run func(context.Context) error,
) error {
	keys, err := term.ToBytes(o.detachKeys)
	if err != nil {
		return commandline.Usagef("--detach-keys %q: %w", o.detachKeys, err)
	}
	ctx, detach := context.WithCancelCause(ctx)
	defer detach(nil)
	in := newDetachable(so.Stdin, keys, detach)
	so.Stdin = in
	err = run(ctx)
	close(in.gone)
	if errors.Is(context.Cause(ctx), errDetached) {
		fmt.Fprint(notes, "\r\nDetached; the container runs on.\r\n") // the terminal is raw still
		return nil
	}
	return err
}

// noTerminal is what kubectl says.
const noTerminal = "Unable to use a TTY - input is not a terminal or the right kind of file"

func onTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	return ok && terminal.IsTerminal(int(f.Fd()))
}

// terminal puts ours into raw mode when the container's process has one, and lets the window's size follow.
func (o *execOptions) terminal(cmd *cobra.Command, so *remotecommand.StreamOptions, notes io.Writer) (context.Context,
	func(), error,
) {
	ctx, none := cmd.Context(), func() {}
	if !o.tty {
		return ctx, none, nil
	}
	f, ok := cmd.InOrStdin().(*os.File)
	if !o.stdin || !ok || !onTerminal(f) {
		if o.stdin {
			fmt.Fprintln(notes, noTerminal)
		}
		return ctx, none, nil
	}
	old, err := terminal.MakeRaw(int(f.Fd()))
	if err != nil {
		return ctx, none, fmt.Errorf("put the terminal into raw mode: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	q := &windowSizes{fd: int(f.Fd()), changed: make(chan os.Signal, 1), ctx: ctx}
	q.changed <- syscall.SIGWINCH // the size there is now
	signal.Notify(q.changed, syscall.SIGWINCH)
	so.TerminalSizeQueue = q
	return ctx, func() {
		signal.Stop(q.changed)
		cancel()
		// Whether it is restored or not, there is nothing left to do about it.
		_ = terminal.Restore(int(f.Fd()), old)
	}, nil
}

// windowSizes tells the size of the terminal each time that it changes.
type windowSizes struct {
	fd      int
	changed chan os.Signal
	ctx     context.Context // TerminalSizeQueue.Next has no argument to pass it in
}

func (q *windowSizes) Next() *remotecommand.TerminalSize {
	for {
		select {
		case <-q.ctx.Done():
			return nil
		case <-q.changed:
			if w, h, err := terminal.GetSize(q.fd); err == nil {
				// The kernel has them in 16 bits.
				return &remotecommand.TerminalSize{Width: uint16(w), Height: uint16(h)}
			}
		}
	}
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/internal/commandline"
	"github.com/berth-node/berth/internal/quantity"
)

type debugOptions struct {
	execOptions
	image, aims, profile, policy, custom string
	env                                  []string
	attach                               bool
}

func (c *commands) debug() *cobra.Command {
	var o debugOptions
	cmd := &cobra.Command{
		Use: "debug POD --image IMAGE [--target CONTAINER] [-it] [-- COMMAND [ARG...]]", Short: "Add a container with " +
			"tools to a running pod",
		Long: `Add an ephemeral container to a pod that runs, as 'kubectl debug' does. It shares the pod's network, and with --target the processes
of one of its containers, whose files are then under /proc/1/root. It is never restarted, cannot be taken away again, and ends with the
pod; the manifest is not touched, and a changed one makes a pod without it.

Profiles say what the container may do:
  general     SYS_PTRACE: trace processes of its own user
  baseline    what containers have by default
  restricted  no root, no capabilities, the runtime's seccomp profile
  netadmin    NET_ADMIN and NET_RAW: change and watch the pod's network
  sysadmin    everything: privileged`,
		Example: "  berth debug web -it --image busybox --target main\n" +
			"  berth debug web --image tools -c sniff --profile netadmin --attach -- tcpdump -c 10\n" +
			"  berth debug web -it --image gdb --target main --profile sysadmin -- gdb -p 1",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); len(args) > 1 && at != 1 {
				return commandline.Usagef("one pod, and what to run must follow: berth debug %s --image IMAGE -- COMMAND", args[0])
			}
			return c.runDebug(cmd, o, args[0], args[1:])
		},
	}
	o.flags(c, cmd)
	f := cmd.Flags()
	f.Lookup("container").Usage = "name of the new container (default: debugger- and five letters)"
	f.StringVar(&o.image, "image", "", "image of the new container (required)")
	f.StringVar(&o.aims, "target", "", "container of the pod whose processes are shared")
	f.StringVar(&o.profile, "profile", "general", "what it may do: "+strings.Join(profileNames(), ", "))
	f.StringVar(&o.policy, "image-pull-policy", "", "Always, IfNotPresent or Never")
	f.StringArrayVar(&o.env, "env", nil, "NAME=VALUE, again for each variable")
	f.StringVar(&o.custom, "custom", "",
		"file with more of the container, YAML or JSON: volumeMounts, env, securityContext and so on")
	f.BoolVar(&o.attach, "attach", false, "wait for it and print what it writes; -i implies it")
	_ = cmd.RegisterFlagCompletionFunc("target", c.containers(&o.target))
	_ = cmd.RegisterFlagCompletionFunc("profile",
		cobra.FixedCompletions(profileNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// profiles are kubectl's, as they are for ephemeral containers.
var profiles = map[string]func() *corev1.SecurityContext{
	"general":  func() *corev1.SecurityContext { return capabilities("SYS_PTRACE") },
	"baseline": func() *corev1.SecurityContext { return nil },
	"restricted": func() *corev1.SecurityContext {
		return &corev1.SecurityContext{
			RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
	},
	"netadmin": func() *corev1.SecurityContext { return capabilities("NET_ADMIN", "NET_RAW") },
	"sysadmin": func() *corev1.SecurityContext { return &corev1.SecurityContext{Privileged: new(true)} },
}

func profileNames() []string {
	return []string{"general", "baseline", "restricted", "netadmin", "sysadmin"}
}

func capabilities(add ...corev1.Capability) *corev1.SecurityContext {
	return &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: add}}
}

// build makes what is to be added, by the flags and the file.
func (o *debugOptions) build(command []string) (*corev1.EphemeralContainer, error) {
	profile, ok := profiles[o.profile]
	switch {
	case o.image == "":
		return nil, commandline.Usagef("--image says what the container is made of")
	case !ok:
		return nil, commandline.Usagef("--profile %q: is none of %s", o.profile, strings.Join(profileNames(), ", "))
	case o.policy != "" && !slices.Contains([]string{"Always", "IfNotPresent", "Never"}, o.policy):
		return nil, commandline.Usagef("--image-pull-policy %q: is none of Always, IfNotPresent, Never", o.policy)
	case o.tty && !o.stdin:
		return nil, commandline.Usagef("-t without -i: a terminal needs input")
	}
	e := &corev1.EphemeralContainer{TargetContainerName: o.aims}
	e.SecurityContext = profile()
	if o.custom != "" {
		data, err := os.ReadFile(o.custom)
		if err != nil {
			return nil, fmt.Errorf("read --custom: %w", err)
		}
		// What is no YAML is refused by who decodes it.
		if doc, err := yaml.YAMLToJSON(data); err == nil {
			if errs := quantity.CheckJSON(doc, &e.EphemeralContainerCommon); len(errs) > 0 {
				return nil, commandline.Usagef("--custom %s: %w", o.custom, errs.ToAggregate())
			}
		}
		if err := yaml.UnmarshalStrict(data, &e.EphemeralContainerCommon); err != nil {
			return nil, commandline.Usagef("--custom %s: %w", o.custom, err)
		}
	}
	for _, v := range o.env {
		name, value, ok := strings.Cut(v, "=")
		if bad := validation.IsEnvVarName(name); !ok || len(bad) > 0 {
			return nil, commandline.Usagef("--env %q: is not NAME=VALUE", v)
		}
		e.Env = append(e.Env, corev1.EnvVar{Name: name, Value: value})
	}
	e.Name, e.Image, e.ImagePullPolicy = o.container, o.image, corev1.PullPolicy(o.policy)
	if e.Name == "" {
		e.Name = "debugger-" + letters(5)
	}
	if len(command) > 0 {
		e.Command = command
	}
	e.Stdin, e.TTY = o.stdin, o.tty
	return e, nil
}

// letters are random, without those that make words.
func letters(n int) string {
	const from = "bcdfghjklmnpqrstvwxz2456789"
	out := make([]byte, n)
	for i := range out {
		out[i] = from[rand.IntN(len(from))]
	}
	return string(out)
}

func (c *commands) runDebug(cmd *cobra.Command, o debugOptions, arg string, command []string) error {
	notes := commandline.Visible(cmd.ErrOrStderr())
	if o.quiet {
		notes = io.Discard
	}
	e, err := o.build(command)
	if err != nil {
		return err
	}
	cl := c.client()
	p, err := o.find(cmd.Context(), cl, arg)
	if err != nil {
		return err
	}
	if o.aims != "" {
		fmt.Fprintf(notes, "Targeting container %q.\n", o.aims)
	}
	if o.container == "" {
		fmt.Fprintf(notes, "Defaulting debug container name to %s.\n", e.Name)
	}
	if p, err = cl.AddEphemeral(cmd.Context(), p, e); err != nil {
		return err
	}
	if !o.attach && !o.stdin {
		return nil
	}
	st, err := awaitStart(cmd.Context(), cl, p, e.Name, notes)
	if err != nil {
		return err
	}
	// What has ended, or is only to be read, is read from its log, which has all of it.
	if st.Terminated != nil || !o.stdin {
		return cl.Logs(cmd.Context(), keyOf(p), e.Name, client.LogOptions{Tail: -1, Follow: true}, cmd.OutOrStdout())
	}
	if o.tty {
		fmt.Fprintln(notes, "If you don't see a command prompt, try pressing enter.")
	}
	shown := &passed{}
	so := remotecommand.StreamOptions{Stdin: shown.in(cmd.InOrStdin()), Stdout: shown.out(cmd.OutOrStdout()), Tty: o.tty}
	if !o.tty {
		so.Stderr = shown.out(cmd.ErrOrStderr())
	}
	ctx, restore, err := o.terminal(cmd, &so, notes)
	if err != nil {
		return err
	}
	err = cl.Exec(ctx, keyOf(p), e.Name, nil, so)
	restore()
	if cmd.Context().Err() != nil {
		return err
	}
	return shown.rest(cmd, cl, p, e.Name, notes, err)
}

var errFound = errors.New("found")

// awaitStart waits until the container has been started, and says what it waits for. It fails when that can never be.
func awaitStart(ctx context.Context, cl *client.Client, p *corev1.Pod, name string,
	notes io.Writer,
) (corev1.ContainerState, error) {
	var state corev1.ContainerState
	said := ""
	seen := func(q *corev1.Pod) error {
		state = stateOf(q, name)
		switch w := state.Waiting; {
		case state.Running != nil || state.Terminated != nil:
			return errFound
		case q.Status.Phase == corev1.PodFailed || q.Status.Phase == corev1.PodSucceeded:
			return fmt.Errorf("pod %s has ended (%s) before container %s was started", p.Name, q.Status.Phase, name)
		case w != nil && w.Reason == "InvalidImageName":
			return fmt.Errorf("container %s is never started: %s: %s", name, w.Reason, w.Message)
		case w != nil && w.Message != "" && w.Reason+w.Message != said:
			said = w.Reason + w.Message
			fmt.Fprintf(notes, "Waiting for container %s: %s: %s\n", name, w.Reason, w.Message)
		}
		return nil
	}
	gone := fmt.Errorf("pod %s has gone before container %s was started", p.Name, name)
	begun := func() error {
		// Of a pod that went before the watch began it tells nothing.
		q, _, err := cl.Pod(ctx, keyOf(p))
		if answer, ok := errors.AsType[*client.Error](err); ok && answer.Code == http.StatusNotFound || err == nil &&
			q.UID != p.UID {
			return gone
		}
		return err
	}
	err := cl.WatchPodsFrom(ctx, p.Namespace, begun, func(t watch.EventType, q *corev1.Pod) error {
		switch {
		case q.UID != p.UID:
			return nil
		case t == watch.Deleted:
			return gone
		}
		return seen(q)
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return state, err
}

func stateOf(p *corev1.Pod, name string) corev1.ContainerState {
	for _, s := range p.Status.EphemeralContainerStatuses {
		if s.Name == name {
			return s.State
		}
	}
	return corev1.ContainerState{}
}

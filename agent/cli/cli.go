// Package cli has the commands that show the pods of an agent and lead into them. Their output and flags follow
// kubectl's habits, so that what people have in their fingers works.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/internal/commandline"
)

// Exit codes of the commands. A command run in a container (exec) gives its own.
const (
	ExitFailure  = commandline.ExitFailure
	ExitUsage    = commandline.ExitUsage
	ExitNoAgent  = 3
	ExitNotFound = commandline.ExitNotFound
)

// ExitHelp tells people of the exit codes.
const ExitHelp = `Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no agent answers, 4 no such pod, container or image.
'berth exec' gives the exit code of the command it ran.`

// ExitCode says what the program ends with after err.
func ExitCode(err error) int {
	var api *client.Error
	var code utilexec.CodeExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return code.Code
	case commandline.IsUsage(err):
		return ExitUsage
	case errors.Is(err, client.ErrNoAgent):
		return ExitNoAgent
	case errors.As(err, &api) && api.Code == http.StatusNotFound:
		return ExitNotFound
	default:
		return ExitFailure
	}
}

// Commands returns the commands. runDir says where the agent is, once flags have been read.
func Commands(runDir func() string) []*cobra.Command {
	c := &commands{client: func() *client.Client { return client.New(runDir()) }}
	e := &evictions{ask: func() *client.Eviction { return c.client().Eviction() }}
	return []*cobra.Command{
		initCommand(), c.run(), c.pods(), c.describe(), c.logs(), c.exec(), c.attach(), c.debug(), c.portForward(), c.events(), c.rm(),
		c.condition(), c.cert(), e.command(), c.prune(), volumeCommand(c),
	}
}

type commands struct{ client func() *client.Client }

// target is a pod that was named on the command line.
type target struct {
	namespace string
	all       bool
}

func (t *target) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&t.namespace, "namespace", "n", "default", "namespace")
}

// key takes "name" and "ns/name", and "pod/name" as kubectl has it.
func (t *target) key(arg string) (types.NamespacedName, error) {
	ns, name, ok := strings.Cut(arg, "/")
	switch {
	case !ok:
		ns, name = t.namespace, arg
	case ns == "pod" || ns == "pods":
		ns = t.namespace
	}
	if ns == "" || name == "" || strings.Contains(name, "/") {
		return types.NamespacedName{}, commandline.Usagef("%q is not the name of a pod (NAME or NAMESPACE/NAME)", arg)
	}
	return types.NamespacedName{Namespace: ns, Name: name}, nil
}

// find returns the pod that arg names, with the node's name behind it or without.
func (t *target) find(ctx context.Context, c *client.Client, arg string) (*corev1.Pod, error) {
	key, err := t.key(arg)
	if err != nil {
		return nil, err
	}
	pods, err := c.Pods(ctx, "")
	if err != nil {
		return nil, err
	}
	p, err := pick(pods, key)
	if err != nil {
		return nil, explainRefused(ctx, c, key, err)
	}
	return p, nil
}

func pick(pods []corev1.Pod, key types.NamespacedName) (*corev1.Pod, error) {
	var found, elsewhere []*corev1.Pod
	for i := range pods {
		p := &pods[i]
		short := p.Name == key.Name+"-"+p.Spec.NodeName
		switch {
		case p.Namespace == key.Namespace && p.Name == key.Name:
			return p, nil // the full name is always that pod's
		case short && p.Namespace == key.Namespace:
			found = append(found, p)
		case short || p.Name == key.Name:
			elsewhere = append(elsewhere, p)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	msg := fmt.Sprintf("pod %q not found in namespace %s", key.Name, key.Namespace)
	if len(elsewhere) > 0 {
		msg += fmt.Sprintf(" (there is %s/%s)", elsewhere[0].Namespace, elsewhere[0].Name)
	}
	return nil, &client.Error{Code: http.StatusNotFound, Message: msg}
}

func keyOf(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// container returns the container of the pod that is meant: the named one, else the pod's default, else its first, with
// a note when there are others.
func container(p *corev1.Pod, name string, note io.Writer) (string, error) {
	var names []string
	for _, c := range p.Spec.Containers {
		names = append(names, c.Name)
	}
	first := names
	for _, c := range p.Spec.InitContainers {
		names = append(names, c.Name)
	}
	for _, c := range p.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	if name != "" {
		if !slices.Contains(names, name) {
			return "", &client.Error{
				Code:    http.StatusNotFound,
				Message: fmt.Sprintf("container %s not found in pod %s (it has %s)", name, p.Name, strings.Join(names, ", ")),
			}
		}
		return name, nil
	}
	if d := p.Annotations["kubectl.kubernetes.io/default-container"]; slices.Contains(names, d) {
		return d, nil
	}
	if len(first) == 0 {
		return "", fmt.Errorf("pod %s has no container", p.Name)
	}
	if len(names) > 1 {
		fmt.Fprintf(note, "Defaulted container %q out of: %s\n", first[0], strings.Join(names, ", "))
	}
	return first[0], nil
}

// onePod completes the name of one pod.
func (c *commands) onePod(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ns, _ := cmd.Flags().GetString("namespace")
	pods, err := c.client().Pods(cmd.Context(), ns)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for i := range pods {
		names = append(names, pods[i].Name+"\t"+display(&pods[i]).status)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// containers completes the name of a container of the pod in the first argument.
func (c *commands) containers(t *target) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		p, err := t.find(cmd.Context(), c.client(), args[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, x := range p.Spec.Containers {
			names = append(names, x.Name)
		}
		for _, x := range p.Spec.InitContainers {
			names = append(names, x.Name)
		}
		for _, x := range p.Spec.EphemeralContainers {
			names = append(names, x.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

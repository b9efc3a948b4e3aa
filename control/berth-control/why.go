package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/scheduler"
	"github.com/berth-node/berth/internal/commandline"
)

// whyTimeout bounds the look at all objects of a cluster.
const whyTimeout = time.Minute

func newWhy(d *data) *cobra.Command {
	var namespace, kubeconfig string
	f := schedulerFlags{}
	form := &commandline.Output{}
	c := &cobra.Command{
		Use: "why POD", Short: "Say why a pod is not on a node, node by node", Args: cobra.ExactArgs(1),
		Long: `Say why a pod is not on a node, node by node.

The plugins of the scheduler look at all nodes as they are now, for this command alone: nothing is changed, and it does
not matter whether a scheduler runs. Of each node all that is against it is told, and not the first reason only.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			namespace, name, err := podNamed(namespace, args[0])
			if err != nil {
				return err
			}
			shown, err := why(c.Context(), cmp.Or(kubeconfig, d.kubeconfig()), namespace, name, f)
			if err != nil {
				return err
			}
			return form.Print(c.OutOrStdout(), shown, shown.table)
		},
	}
	p := c.Flags()
	p.StringVarP(&namespace, "namespace", "n", metav1.NamespaceDefault, "namespace of the pod")
	p.StringVar(&kubeconfig, "kubeconfig", "", "file by which the API is reached; the administrator's of the data directory, if empty")
	f.addFile(p)
	form.AddFlag(c)
	return c
}

// podNamed takes "name", and "ns/name" and "pod/name" as berth's commands do.
func podNamed(namespace, arg string) (ns, name string, err error) {
	ns, name, ok := strings.Cut(arg, "/")
	switch {
	case !ok:
		ns, name = namespace, arg
	case ns == "pod" || ns == "pods":
		ns = namespace
	}
	if ns == "" || name == "" || strings.Contains(name, "/") {
		return "", "", commandline.Usagef("%q is not the name of a pod (NAME or NAMESPACE/NAME)", arg)
	}
	return ns, name, nil
}

func why(ctx context.Context, kubeconfig, namespace, name string, f schedulerFlags) (out shownWhy, err error) {
	ctx, cancel := context.WithTimeout(ctx, whyTimeout)
	defer cancel()
	r, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return out, fmt.Errorf("read kubeconfig: %w; berth-control serve makes that of its data directory", err)
	}
	client, err := kubernetes.NewForConfig(r)
	if err != nil {
		return out, fmt.Errorf("make client: %w", err)
	}
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return out, fmt.Errorf("get pod: %w", err)
	}
	if pod.Spec.NodeName != "" {
		return whyShown(pod, nil), nil
	}
	informers := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(controller.WithoutManagers))
	broadcaster := events.NewBroadcaster(nil)
	defer broadcaster.Shutdown()
	f.groups = hasGroups(client)
	s, err := makeScheduler(ctx, f, client, r, informers, broadcaster, slog.New(slog.DiscardHandler))
	if err != nil {
		return out, err
	}
	defer informers.Shutdown()
	defer cancel()
	informers.StartWithContext(ctx)
	var unread []string
	for kind, synced := range informers.WaitForCacheSync(ctx.Done()) {
		if !synced {
			unread = append(unread, kind.String())
		}
	}
	if len(unread) > 0 {
		slices.Sort(unread)
		return out, fmt.Errorf("look at the cluster: it could not be read in time: %s", strings.Join(unread, ", "))
	}
	e, err := s.Explain(ctx, pod)
	if err != nil {
		return out, err
	}
	return whyShown(pod, e), nil
}

// shownReason is what is against a pod, or a node for it.
type shownReason struct {
	Plugin  string `json:"plugin"`
	Message string `json:"message"`
}

// shownNode is a node, with all that is against it.
type shownNode struct {
	Node    string        `json:"node"`
	Suits   bool          `json:"suits"`
	Reasons []shownReason `json:"reasons"`
}

// shownWhy is why a pod is not on a node, or on which it is.
type shownWhy struct {
	Namespace string        `json:"namespace"`
	Pod       string        `json:"pod"`
	On        *string       `json:"nodeName"`   // null: on none
	Said      *shownSaid    `json:"scheduler"`  // what a scheduler has said last; null: nothing
	Whole     []shownReason `json:"againstPod"` // whatever the node
	Nodes     []shownNode   `json:"nodes"`
}

type shownSaid struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func whyShown(pod *corev1.Pod, e *scheduler.Explanation) shownWhy {
	out := shownWhy{Namespace: pod.Namespace, Pod: pod.Name}
	if pod.Spec.NodeName != "" {
		out.On = &pod.Spec.NodeName
		return out
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			out.Said = &shownSaid{c.Reason, c.Message}
		}
	}
	for _, r := range e.Whole {
		out.Whole = append(out.Whole, shownReason(r))
	}
	for _, n := range e.Nodes {
		one := shownNode{Node: n.Node, Suits: len(n.Reasons) == 0}
		for _, r := range n.Reasons {
			one.Reasons = append(one.Reasons, shownReason(r))
		}
		out.Nodes = append(out.Nodes, one)
	}
	return out
}

// table is what is against the pod, then a row for each reason against each node.
func (s shownWhy) table(out io.Writer) error {
	if s.On != nil {
		_, err := fmt.Fprintf(out, "pod %s/%s is on node %s\n", s.Namespace, s.Pod, *s.On)
		return err
	}
	if s.Said != nil {
		fmt.Fprintf(out, "%s: %s\n", s.Said.Reason, s.Said.Message)
	}
	for _, r := range s.Whole {
		fmt.Fprintf(out, "whatever the node: %s (%s)\n", r.Message, r.Plugin)
	}
	if len(s.Nodes) == 0 {
		if len(s.Whole) == 0 {
			fmt.Fprintln(out, "there are no nodes")
		}
		return nil
	}
	return table(out, func(w io.Writer) {
		fmt.Fprintln(w, "NODE\tPLUGIN\tREASON")
		for _, n := range s.Nodes {
			if n.Suits {
				fmt.Fprintf(w, "%s\t-\tsuits the pod\n", n.Node)
			}
			for _, r := range n.Reasons {
				fmt.Fprintf(w, "%s\t%s\t%s\n", n.Node, cmp.Or(r.Plugin, "-"), cell(r.Message))
			}
		}
	})
}

// hasGroups says whether the API has groups of pods.
func hasGroups(client kubernetes.Interface) bool {
	_, err := client.Discovery().ServerResourcesForGroupVersion(schedulingv1beta1.SchemeGroupVersion.String())
	return err == nil
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"
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
	c := &cobra.Command{
		Use: "why POD", Short: "Say why a pod is not on a node, node by node", Args: cobra.ExactArgs(1),
		Long: `Say why a pod is not on a node, node by node.

The plugins of the scheduler look at all nodes as they are now, for this command alone: nothing is changed, and it does
not matter whether a scheduler runs. Of each node all that is against it is told, and not the first reason only.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return why(c.Context(), commandline.Visible(c.OutOrStdout()), cmp.Or(kubeconfig, d.kubeconfig()), namespace, args[0], f)
		},
	}
	p := c.Flags()
	p.StringVarP(&namespace, "namespace", "n", metav1.NamespaceDefault, "namespace of the pod")
	p.StringVar(&kubeconfig, "kubeconfig", "", "file by which the API is reached; the administrator's of the data directory, if empty")
	f.addFile(p)
	return c
}

func why(ctx context.Context, out io.Writer, kubeconfig, namespace, name string, f schedulerFlags) error {
	ctx, cancel := context.WithTimeout(ctx, whyTimeout)
	defer cancel()
	r, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(r)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get pod: %w", err)
	}
	if pod.Spec.NodeName != "" {
		fmt.Fprintf(out, "pod %s/%s is on node %s\n", namespace, name, pod.Spec.NodeName)
		return nil
	}
	informers := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(controller.WithoutManagers))
	broadcaster := events.NewBroadcaster(nil)
	defer broadcaster.Shutdown()
	f.groups = hasGroups(client)
	s, err := makeScheduler(ctx, f, client, r, informers, broadcaster, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
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
		return fmt.Errorf("look at the cluster: it could not be read in time: %s", strings.Join(unread, ", "))
	}
	e, err := s.Explain(ctx, pod)
	if err != nil {
		return err
	}
	return tell(out, pod, e)
}

// tell writes an explanation: what is against the pod, then a row for each reason against each node.
func tell(out io.Writer, pod *corev1.Pod, e *scheduler.Explanation) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			fmt.Fprintf(out, "%s: %s\n", c.Reason, c.Message)
		}
	}
	for _, r := range e.Whole {
		fmt.Fprintf(out, "whatever the node: %s (%s)\n", r.Message, r.Plugin)
	}
	if len(e.Nodes) == 0 {
		if len(e.Whole) == 0 {
			fmt.Fprintln(out, "there are no nodes")
		}
		return nil
	}
	line := func(s string) string { return strings.NewReplacer("\n", "^J", "\t", "^I").Replace(s) }
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPLUGIN\tREASON")
	for _, n := range e.Nodes {
		if len(n.Reasons) == 0 {
			fmt.Fprintf(w, "%s\t-\tsuits the pod\n", n.Node)
		}
		for _, r := range n.Reasons {
			fmt.Fprintf(w, "%s\t%s\t%s\n", n.Node, cmp.Or(r.Plugin, "-"), line(r.Message))
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

// hasGroups says whether the API has groups of pods.
func hasGroups(client kubernetes.Interface) bool {
	_, err := client.Discovery().ServerResourcesForGroupVersion(schedulingv1beta1.SchemeGroupVersion.String())
	return err == nil
}

package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/api/client"
)

type podsOptions struct {
	target
	watch, noHeaders bool
	output           string
}

func (c *commands) pods() *cobra.Command {
	var o podsOptions
	cmd := &cobra.Command{
		Use: "pods [POD...]", Aliases: []string{"pod", "po", "get", "ps"}, Short: "List the pods of this node",
		Example: "  berth pods -A -o wide\n  berth pods -w\n  berth pods web -o yaml",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, s string) ([]string, cobra.ShellCompDirective) {
			return c.onePod(cmd, nil, s)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && (args[0] == "pods" || args[0] == "pod" || args[0] == "po") && cmd.CalledAs() == "get" {
				args = args[1:]
			}
			return c.list(cmd, o, args)
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "pods of every namespace")
	f.BoolVarP(&o.watch, "watch", "w", false, "go on with every change")
	f.StringVarP(&o.output, "output", "o", "", "wide, json, yaml or name")
	f.BoolVar(&o.noHeaders, "no-headers", false, "no line with the columns' names")
	complete(cmd, "output", "wide", "json", "yaml", "name")
	return cmd
}

// complete offers fixed values for a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	// It fails for a flag that is not there, which the tests of the commands would show.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func (c *commands) list(cmd *cobra.Command, o podsOptions, names []string) error {
	if !slices.Contains([]string{"", "wide", "json", "yaml", "name"}, o.output) {
		return usagef("-o %s: must be wide, json, yaml or name", o.output)
	}
	ns := o.namespace
	if o.all {
		ns = ""
	}
	cl, out := c.client(), cmd.OutOrStdout()
	all, err := cl.Pods(cmd.Context(), "")
	if err != nil {
		return err
	}
	pods, err := o.choose(all, ns, names)
	if err != nil {
		return err
	}
	if o.output != "" && o.output != "wide" && !o.watch {
		return printObjects(out, o.output, pods, len(names) == 1)
	}
	if len(pods) == 0 && !o.watch {
		if o.all {
			fmt.Fprintln(cmd.ErrOrStderr(), "No pods.")
		} else {
			fmt.Fprintf(cmd.ErrOrStderr(), "No pods in namespace %s.\n", ns)
		}
		hint(cmd, cl)
		return nil
	}
	t := newTable(out, o)
	for i := range pods {
		if err := o.print(out, t, watch.Added, &pods[i]); err != nil {
			return err
		}
	}
	if err := t.Flush(); err != nil || !o.watch {
		return err
	}
	return c.watchPods(cmd, cl, o, t, ns, names, pods)
}

// hint tells of manifests that cannot be run, because somebody who sees no pod wants to know just that.
func hint(cmd *cobra.Command, cl *client.Client) {
	problems, err := cl.Problems(cmd.Context())
	if err != nil {
		return
	}
	printProblems(visible{cmd.ErrOrStderr()}, problems)
}

func printProblems(w io.Writer, problems []api.Problem) {
	for _, p := range problems {
		for _, e := range p.Errors {
			fmt.Fprintf(w, "%s: %s\n", p.File, e)
		}
	}
}

// choose returns the pods that are asked for.
func (o *podsOptions) choose(all []corev1.Pod, ns string, names []string) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	if len(names) == 0 {
		for _, p := range all {
			if ns == "" || p.Namespace == ns {
				pods = append(pods, p)
			}
		}
		return pods, nil
	}
	for _, n := range names {
		key, err := o.key(n)
		if err != nil {
			return nil, err
		}
		p, err := pick(all, key)
		if err != nil {
			return nil, err
		}
		pods = append(pods, *p)
	}
	return pods, nil
}

// watchPods prints every change after what was listed.
func (c *commands) watchPods(cmd *cobra.Command, cl *client.Client, o podsOptions, t *table, ns string, names []string, listed []corev1.Pod) error {
	shown := map[string]string{}
	for i := range listed {
		shown[listed[i].Namespace+"/"+listed[i].Name] = o.essence(&listed[i])
	}
	err := cl.WatchPods(cmd.Context(), ns, func(et watch.EventType, p *corev1.Pod) error {
		if len(names) > 0 {
			if chosen, err := o.choose([]corev1.Pod{*p}, ns, names); err != nil || len(chosen) == 0 {
				return nil // another pod
			}
		}
		key, now := p.Namespace+"/"+p.Name, o.essence(p)
		if shown[key] == now && et != watch.Deleted {
			return nil
		}
		shown[key] = now
		if et == watch.Deleted {
			delete(shown, key)
		}
		if err := o.print(cmd.OutOrStdout(), t, et, p); err != nil {
			return err
		}
		return t.Flush()
	})
	if cmd.Context().Err() != nil {
		return nil
	}
	return err
}

// essence is what a line of the list says of a pod; a change that does not change it is not printed again.
func (o *podsOptions) essence(p *corev1.Pod) string {
	if o.output != "" && o.output != "wide" {
		return p.ResourceVersion + p.String()
	}
	r := display(p)
	return fmt.Sprint(r.ready, r.total, r.status, r.restarts, p.Status.PodIP)
}

func (o *podsOptions) print(out io.Writer, t *table, et watch.EventType, p *corev1.Pod) error {
	if o.output == "" || o.output == "wide" {
		t.add(et, p)
		return nil
	}
	return printObjects(out, o.output, []corev1.Pod{*p}, true)
}

// table writes pods in columns that stay where they are once a line was written.
type table struct {
	w     interface{ Flush() error }
	out   io.Writer
	o     podsOptions
	begun bool
}

func newTable(out io.Writer, o podsOptions) *table {
	w := printers.GetNewTabWriter(out)
	return &table{w: w, out: w, o: o}
}

func (t *table) Flush() error { return t.w.Flush() }

func (t *table) add(et watch.EventType, p *corev1.Pod) {
	if !t.begun && !t.o.noHeaders {
		head := []string{"NAME", "READY", "STATUS", "RESTARTS", "AGE"}
		if t.o.all {
			head = slices.Insert(head, 0, "NAMESPACE")
		}
		if t.o.output == "wide" {
			head = append(head, "IP", "NODE", "QOS")
		}
		fmt.Fprintln(t.out, strings.Join(head, "\t"))
	}
	t.begun = true
	r, now := display(p), time.Now()
	if et == watch.Deleted {
		r.status = "Deleted"
	}
	cells := []string{p.Name, fmt.Sprintf("%d/%d", r.ready, r.total), r.status, r.restartText(now), age(born(p), now)}
	if t.o.all {
		cells = slices.Insert(cells, 0, p.Namespace)
	}
	if t.o.output == "wide" {
		cells = append(cells, cmp.Or(p.Status.PodIP, "<none>"), cmp.Or(p.Spec.NodeName, "<none>"), cmp.Or(string(p.Status.QOSClass), "<none>"))
	}
	fmt.Fprintln(t.out, strings.Join(cells, "\t"))
}

// born is when the pod began: static pods have no creation time, because no API server has created them.
func born(p *corev1.Pod) metav1.Time {
	if p.CreationTimestamp.IsZero() && p.Status.StartTime != nil {
		return *p.Status.StartTime
	}
	return p.CreationTimestamp
}

func printObjects(w io.Writer, format string, pods []corev1.Pod, single bool) error {
	for i := range pods {
		pods[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	}
	if format == "name" {
		for i := range pods {
			fmt.Fprintln(w, "pod/"+pods[i].Name)
		}
		return nil
	}
	var v any = corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: append([]corev1.Pod{}, pods...)}
	if single {
		v = pods[0]
	}
	b, err := json.MarshalIndent(v, "", "    ")
	if err == nil && format == "yaml" {
		b, err = yaml.JSONToYAML(b)
	}
	if err != nil {
		return fmt.Errorf("encode pods: %w", err)
	}
	_, err = fmt.Fprintln(w, strings.TrimSuffix(string(b), "\n"))
	return err
}

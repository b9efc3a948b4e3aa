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
	"github.com/berth-node/berth/internal/commandline"
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
		return commandline.Usagef("-o %s: must be wide, json, yaml or name", o.output)
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
	// Of an agent that does not tell, the pods are still worth seeing.
	problems, _ := cl.Problems(cmd.Context())
	refused := refusals(problems)
	objects := o.output != "" && o.output != "wide"
	wanted := names
	if len(names) > 0 && !objects {
		wanted, refused = o.split(all, names, problems)
	}
	var pods []corev1.Pod
	if len(names) == 0 || len(wanted) > 0 {
		if pods, err = o.choose(all, ns, wanted); err != nil {
			return err
		}
	}
	if objects && !o.watch {
		return printObjects(out, o.output, pods, len(names) == 1)
	}
	t := newTable(out, o)
	t.kept = keptPods(problems)
	for i := range pods {
		if err := o.print(out, t, watch.Added, &pods[i]); err != nil {
			return err
		}
	}
	if !objects {
		t.addRefused(refused, ns)
	}
	if !t.begun && !o.watch {
		if o.all {
			fmt.Fprintln(cmd.ErrOrStderr(), "No pods.")
		} else {
			fmt.Fprintf(cmd.ErrOrStderr(), "No pods in namespace %s.\n", ns)
		}
	}
	if !o.watch {
		printProblems(commandline.Visible(cmd.ErrOrStderr()), problems, len(pods) == 0)
	}
	if err := t.Flush(); err != nil || !o.watch {
		return err
	}
	return c.watchPods(cmd, cl, o, t, ns, names, pods)
}

// split parts names of pods from those of manifests that are refused.
func (o *podsOptions) split(all []corev1.Pod, names []string, problems []api.Problem) (pods []string,
	refused []*refusal,
) {
	for _, n := range names {
		key, err := o.key(n)
		if err == nil {
			if _, err := pick(all, key); err != nil {
				if rs := refusedNamed(problems, key); len(rs) > 0 {
					refused = append(refused, rs...)
					continue
				}
			}
		}
		pods = append(pods, n)
	}
	return pods, refused
}

// printProblems tells what is wrong with the directory of manifests, and, where somebody sees no pod and wants to know
// just that, of every manifest that cannot be run.
func printProblems(w io.Writer, problems []api.Problem, all bool) {
	for _, p := range problems {
		if !all && !p.Directory {
			continue
		}
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
func (c *commands) watchPods(cmd *cobra.Command, cl *client.Client, o podsOptions, t *table, ns string, names []string,
	listed []corev1.Pod,
) error {
	shown := map[string]string{}
	for i := range listed {
		shown[listed[i].Namespace+"/"+listed[i].Name] = o.essence(&listed[i])
	}
	err := cl.WatchPods(cmd.Context(), ns, func(et watch.EventType, p *corev1.Pod) error {
		meant := func(name string) bool {
			chosen, err := o.choose([]corev1.Pod{*p}, ns, []string{name})
			return err == nil && len(chosen) > 0
		}
		if len(names) > 0 && !slices.ContainsFunc(names, meant) {
			return nil
		}
		key, now := p.Namespace+"/"+p.Name, o.essence(p)
		if shown[key] == now && et != watch.Deleted {
			return nil
		}
		shown[key] = now
		if et == watch.Deleted {
			delete(shown, key)
		}
		// Which edits are taken changes meanwhile, too.
		if problems, err := cl.Problems(cmd.Context()); err == nil {
			t.kept = keptPods(problems)
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
		return p.String()
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
	kept  map[string]bool // pods that an edit was not taken to
}

func newTable(out io.Writer, o podsOptions) *table {
	w := printers.GetNewTabWriter(commandline.Visible(out))
	return &table{w: w, out: w, o: o}
}

func (t *table) Flush() error { return t.w.Flush() }

func (t *table) head() {
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
}

// row writes one line, whatever is in its cells.
func (t *table) row(cells []string) {
	for i, c := range cells {
		cells[i] = oneLine(c)
	}
	fmt.Fprintln(t.out, strings.Join(cells, "\t"))
}

func (t *table) add(et watch.EventType, p *corev1.Pod) {
	t.head()
	r, now := display(p), time.Now()
	switch {
	case et == watch.Deleted:
		r.status = "Deleted"
	case t.kept[p.Namespace+"/"+p.Name]:
		r.status += editRefused
	}
	cells := []string{p.Name, fmt.Sprintf("%d/%d", r.ready, r.total), r.status, r.restartText(now), age(born(p), now)}
	if t.o.all {
		cells = slices.Insert(cells, 0, p.Namespace)
	}
	if t.o.output == "wide" {
		cells = append(cells, cmp.Or(p.Status.PodIP, "<none>"), cmp.Or(p.Spec.NodeName, "<none>"),
			cmp.Or(string(p.Status.QOSClass), "<none>"))
	}
	t.row(cells)
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
			if _, err := fmt.Fprintln(w, "pod/"+oneLine(pods[i].Name)); err != nil {
				return err
			}
		}
		return nil
	}
	var v any = corev1.PodList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
		Items:    append([]corev1.Pod{}, pods...),
	}
	if single {
		v = pods[0]
	}
	b, err := json.MarshalIndent(v, "", "    ")
	b = commandline.EscapedJSON(b)
	if err == nil && format == "yaml" {
		b, err = yaml.JSONToYAML(b)
	}
	if err != nil {
		return fmt.Errorf("encode pods: %w", err)
	}
	_, err = fmt.Fprintln(w, strings.TrimSuffix(string(b), "\n"))
	return err
}

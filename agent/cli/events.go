package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/berth-node/berth/internal/commandline"
)

func (c *commands) events() *cobra.Command {
	var t target
	var follow bool
	var only filter
	cmd := &cobra.Command{
		Use: "events [POD]", Short: "Show what happened to pods",
		Example: "  berth events -w\n  berth events web\n  berth events -A --types Warning --reason BackOff,Unhealthy",
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: c.onePod,
		RunE: func(cmd *cobra.Command, args []string) error { return c.runEvents(cmd, t, follow, only, args) },
	}
	cmd.Flags().StringSliceVar(&only.types, "types", nil, "only events of these types: Normal, Warning")
	cmd.Flags().StringSliceVar(&only.reasons, "reason", nil, "only events with these reasons, such as BackOff")
	t.addFlags(cmd)
	cmd.Flags().BoolVarP(&t.all, "all-namespaces", "A", false, "events of every namespace")
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "go on with what happens")
	return cmd
}

func (c *commands) runEvents(cmd *cobra.Command, t target, follow bool, only filter, args []string) error {
	if err := only.check(); err != nil {
		return err
	}
	cl := c.client()
	ns, uid := t.namespace, types.UID("")
	if t.all {
		ns = ""
	}
	if len(args) == 1 {
		p, err := t.find(cmd.Context(), cl, args[0])
		if err != nil {
			return err
		}
		ns, uid = p.Namespace, p.UID
	}
	w := printers.GetNewTabWriter(commandline.Visible(cmd.OutOrStdout()))
	head := "LAST SEEN\tTYPE\tREASON\tOBJECT\tMESSAGE"
	if t.all {
		head = "NAMESPACE\t" + head
	}
	if !follow {
		events, err := cl.Events(cmd.Context(), ns, uid)
		if err != nil {
			return err
		}
		events = slices.DeleteFunc(events, func(e corev1.Event) bool { return !only.wants(&e) })
		if len(events) == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "No events.")
			return nil
		}
		fmt.Fprintln(w, head)
		for i := range events {
			printEvent(w, &events[i], t.all)
		}
		return w.Flush()
	}
	fmt.Fprintln(w, head)
	err := cl.WatchEvents(cmd.Context(), ns, uid, func(et watch.EventType, e *corev1.Event) error {
		if et == watch.Deleted || !only.wants(e) {
			return nil
		}
		printEvent(w, e, t.all)
		return w.Flush()
	})
	if cmd.Context().Err() != nil {
		return nil
	}
	return err
}

// filter says which events are wanted; what is empty filters nothing.
type filter struct{ types, reasons []string }

func (f filter) check() error {
	for _, t := range f.types {
		if !strings.EqualFold(t, corev1.EventTypeNormal) && !strings.EqualFold(t, corev1.EventTypeWarning) {
			return commandline.Usagef("--types %q: must be Normal or Warning", t)
		}
	}
	return nil
}

func (f filter) wants(e *corev1.Event) bool {
	among := func(list []string, s string) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(one string) bool { return strings.EqualFold(one, s) })
	}
	return among(f.types, e.Type) && among(f.reasons, e.Reason)
}

func printEvent(w io.Writer, e *corev1.Event, ns bool) {
	if ns {
		fmt.Fprintf(w, "%s\t", oneLine(e.Namespace))
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s/%s\t%s\n", seen(e, time.Now()), oneLine(e.Type), oneLine(e.Reason),
		strings.ToLower(oneLine(e.InvolvedObject.Kind)), oneLine(e.InvolvedObject.Name), oneLine(strings.TrimSpace(e.Message)))
}

// seen says when an event was last seen, and how often.
func seen(e *corev1.Event, now time.Time) string {
	last := e.LastTimestamp
	if last.IsZero() {
		last.Time = e.EventTime.Time
	}
	if e.Count > 1 && !e.FirstTimestamp.IsZero() {
		return fmt.Sprintf("%s (x%d over %s)", age(last, now), e.Count, age(e.FirstTimestamp, now))
	}
	return age(last, now)
}

// from says who told of an event.
func from(e *corev1.Event) string { return cmp.Or(e.Source.Component, e.ReportingController) }

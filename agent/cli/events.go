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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/berth-node/berth/internal/commandline"
)

func (c *commands) events() *cobra.Command {
	var t target
	var follow bool
	var only filter
	var as printed
	cmd := &cobra.Command{
		Use: "events [POD]", Short: "Show what happened to pods",
		Example: "  berth events -w\n  berth events web\n  berth events -A --types Warning --reason BackOff,Unhealthy",
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: c.onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			if follow && as.Machines() {
				return commandline.Usagef("-o %s is a whole, which -w has no end for", as.String())
			}
			return c.runEvents(cmd, t, follow, only, as, args)
		},
	}
	as.AddFlag(cmd)
	cmd.Flags().StringSliceVar(&only.types, "types", nil, "only events of these types: Normal, Warning")
	cmd.Flags().StringSliceVar(&only.reasons, "reason", nil, "only events with these reasons, such as BackOff")
	t.addFlags(cmd)
	cmd.Flags().BoolVarP(&t.all, "all-namespaces", "A", false, "events of every namespace")
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "go on with what happens")
	return cmd
}

func (c *commands) runEvents(cmd *cobra.Command, t target, follow bool, only filter, as printed, args []string) error {
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
		if as.Machines() {
			return as.print(cmd, eventList{shownEvents(events)}, nil)
		}
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

// eventList is what programs get of events. The objects of the API have a dozen fields more, half of them empty and two
// of them in two places.
type eventList struct {
	Events []shownEvent `json:"events"`
}

type shownEvent struct {
	Namespace string    `json:"namespace"`
	Object    string    `json:"object"` // as kubectl names one: pod/web
	UID       types.UID `json:"uid"`
	Type      string    `json:"type"`
	Reason    string    `json:"reason"`
	Message   string    `json:"message"`
	From      string    `json:"from"`
	Count     int32     `json:"count"`
	First     time.Time `json:"firstSeen"`
	Last      time.Time `json:"lastSeen"`
}

func shownEvents(all []corev1.Event) (out []shownEvent) {
	for i := range all {
		e := &all[i]
		first := e.FirstTimestamp.UTC()
		if e.FirstTimestamp.IsZero() {
			first = lastSeen(e).UTC()
		}
		out = append(out, shownEvent{
			Namespace: e.Namespace, Object: eventObject(e), UID: e.InvolvedObject.UID, Type: e.Type, Reason: e.Reason,
			Message: e.Message, From: from(e), Count: max(e.Count, 1), First: first, Last: lastSeen(e).UTC(),
		})
	}
	return out
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
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", seen(e, time.Now()), oneLine(e.Type), oneLine(e.Reason),
		oneLine(eventObject(e)), oneLine(strings.TrimSpace(e.Message)))
}

// eventObject is what an event is of.
func eventObject(e *corev1.Event) string {
	return strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name
}

// lastSeen is the time of an event, which has it in one of two fields.
func lastSeen(e *corev1.Event) time.Time {
	if e.LastTimestamp.IsZero() {
		return e.EventTime.Time
	}
	return e.LastTimestamp.Time
}

// seen says when an event was last seen, and how often.
func seen(e *corev1.Event, now time.Time) string {
	last := metav1.Time{Time: lastSeen(e)}
	if e.Count > 1 && !e.FirstTimestamp.IsZero() {
		return fmt.Sprintf("%s (x%d over %s)", age(last, now), e.Count, age(e.FirstTimestamp, now))
	}
	return age(last, now)
}

// from says who told of an event.
func from(e *corev1.Event) string { return cmp.Or(e.Source.Component, e.ReportingController) }

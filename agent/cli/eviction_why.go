package cli

import (
	"fmt"
	"io"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/signal"
)

// printDecision tells of an eviction what there was, who went, how long it took, and how the others stood.
func printDecision(w io.Writer, d *eviction.Decision) {
	who := "nobody could go"
	switch {
	case d.Pod.UID != "" && d.Result.Error == "":
		who = oneLine(d.Pod.String()) + " was evicted"
	case d.Result.Told:
		who = oneLine(d.Pod.String()) + " was told to end"
	case d.Pod.UID != "":
		who = oneLine(d.Pod.String()) + " was to go"
	case d.Reclaimed > 0:
		who = "what no pod needs was removed, " + amount(d.Signal, d.Reclaimed)
	}
	fmt.Fprintf(w, "%s ago: %s\n", age(metav1.NewTime(d.Time), time.Now()), who)
	if slices.Contains(signal.Limits(), d.Signal) {
		fmt.Fprintf(w, "  why: %s: %s used of %s", d.Signal, d.Signal.Format(d.Capacity-d.Available), d.Signal.Format(d.Capacity))
	} else {
		fmt.Fprintf(w, "  why: %s: %s of %s left", d.Signal, d.Signal.Format(d.Available), d.Signal.Format(d.Capacity))
	}
	if d.Threshold != "" {
		fmt.Fprintf(w, ", less than %s", d.Signal.Format(d.Limit))
	}
	fmt.Fprintf(w, " (%s)\n", oneLine(d.Reason))
	if d.Message != "" {
		fmt.Fprintf(w, "  message: %s\n", oneLine(d.Message))
	}
	if !d.Ordered.IsZero() {
		fmt.Fprintf(w, "  took: told to end after %s with %d s to do so, gone after %s\n",
			d.Ordered.Sub(d.Crossed).Round(time.Microsecond), d.GraceSeconds, d.Returned.Sub(d.Crossed).Round(time.Microsecond))
	}
	if d.Result.Known {
		fmt.Fprintf(w, "  then: %s left, %s more\n", d.Signal.Format(d.Result.Available), d.Signal.Format(d.Result.Freed))
	}
	if d.Result.Error != "" {
		fmt.Fprintf(w, "  error: %s\n", oneLine(d.Result.Error))
	}
	for i := range d.Ranked {
		l := &d.Ranked[i]
		place := "-"
		if l.Place > 0 {
			place = fmt.Sprint(l.Place)
		}
		fmt.Fprintf(w, "  %s. %s/%s (%s): %s", place, oneLine(l.Pod.Namespace), oneLine(l.Pod.Name), l.Pod.QOS, oneLine(l.Figures))
		if l.Before != "" {
			fmt.Fprintf(w, "; %s", oneLine(l.Before))
		}
		fmt.Fprintln(w)
	}
	if d.Others > 0 {
		fmt.Fprintf(w, "  and %d others\n", d.Others)
	}
}

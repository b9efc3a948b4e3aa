package rank

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/eviction/signal"
)

// Line is what is told of a pod's place in the order.
type Line struct {
	Place   int    `json:"place"` // from 1 on; 0: it is protected
	Pod     Pod    `json:"pod"`
	Figures string `json:"figures"` // the arithmetic
	Before  string `json:"before"`  // why it goes before the next one; "" for the last
}

// Explain puts pods in their order, the protected ones last, and says for each why it is where it is.
func Explain(pods []Pod, of signal.Signal) []Line {
	order, list := Order(pods, of), rules(of)
	out := make([]Line, 0, len(pods))
	for i := range order {
		line := Line{Place: i + 1, Pod: order[i], Figures: figures(&order[i], of)}
		if i+1 < len(order) {
			_, by := decide(list, &order[i], &order[i+1])
			line.Before = before(&order[i], &order[i+1], by, of)
		}
		out = append(out, line)
	}
	kept := slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return !p.Protected })
	for i := range kept {
		kept[i].Protected = false // so that they are put in order too
	}
	for _, p := range Order(kept, of) {
		p.Protected = true
		out = append(out, Line{Pod: p, Figures: figures(&p, of)})
	}
	return out
}

// figures is the arithmetic of one pod.
func figures(p *Pod, of signal.Signal) string {
	text := "usage is not known"
	switch {
	case p.Known && of.Requestable():
		text = fmt.Sprintf("usage %s - request %s = %s", amount(p, of), of.Format(p.Request), of.Format(p.Over()))
	case p.Known:
		text = "usage " + amount(p, of)
	}
	text += fmt.Sprintf(", priority %d", p.Priority)
	if p.Protected {
		text += ", protected"
	}
	if p.Ending {
		text += ", ends already"
	}
	return text
}

// before says why a goes before b.
func before(a, b *Pod, by ruleName, of signal.Signal) string {
	next := b.Namespace + "/" + b.Name
	switch by {
	case byFigures:
		return fmt.Sprintf("its usage is not known, that of %s is", next)
	case byExceeds:
		return fmt.Sprintf("it has more than its request, %s has not", next)
	case byPriority:
		return fmt.Sprintf("its priority %d is lower than %d of %s", a.Priority, b.Priority, next)
	case byOver:
		if !of.Requestable() {
			return fmt.Sprintf("it has %s, %s has %s", amount(a, of), next, amount(b, of))
		}
		return fmt.Sprintf("it is %s, %s is %s", relation(a, of), next, relation(b, of))
	}
	return fmt.Sprintf("it is equal to %s, and its name comes first", next)
}

// amount is what a pod has, as far as is known.
func amount(p *Pod, of signal.Signal) string {
	if p.AtLeast {
		return "at least " + of.Format(p.Usage)
	}
	return of.Format(p.Usage)
}

// relation is a pod's usage beside its request.
func relation(p *Pod, of signal.Signal) string {
	over := p.Over()
	switch {
	case over < 0 && p.AtLeast:
		return "at most " + of.Format(-over) + " below its request"
	case over < 0:
		return of.Format(-over) + " below its request"
	case p.AtLeast:
		return "at least " + of.Format(over) + " above its request"
	}
	return of.Format(over) + " above its request"
}

// Step is one pod that would go.
type Step struct {
	Pod   Pod   `json:"pod"`
	Frees int64 `json:"frees"`
	After int64 `json:"after"` // available then
}

// Outcome is what would come of a shortage.
type Outcome struct {
	Met    bool   `json:"met"`    // the threshold is met at all
	Until  int64  `json:"until"`  // available that ends it
	Steps  []Step `json:"steps"`  // in order, those first that end already
	Enough bool   `json:"enough"` // that is reached
}

// Simulate says who would go, in which order and until when, if so much were available: until there is the threshold
// and what is to be freed beyond it. It takes it that what a pod has comes back as a whole, and that others take
// nothing.
func Simulate(pods []Pod, of signal.Signal, available, threshold, minReclaim int64) Outcome {
	out := Outcome{Met: available < threshold, Until: threshold + minReclaim}
	if !out.Met {
		out.Enough = true
		return out
	}
	order := Order(pods, of)
	slices.SortStableFunc(order, func(a, b Pod) int { return TrueFirst(a.Ending, b.Ending) })
	for _, p := range order {
		if out.Enough = available >= out.Until; out.Enough {
			return out
		}
		if p.Useless() {
			continue
		}
		var frees int64
		if p.Known {
			frees = p.Usage
		}
		available += frees
		out.Steps = append(out.Steps, Step{Pod: p, Frees: frees, After: available})
	}
	out.Enough = available >= out.Until
	return out
}

// Useless says that a pod's end would free nothing: it is known to have nothing of what is short.
func (p *Pod) Useless() bool { return p.Known && !p.AtLeast && p.Usage <= 0 }

// Stalled returns the pod that goes when the node stalls, in front of its time: of the lowest QoS class that has any
// pod that may go, the first by the order for memory. It returns nil when there is none.
func Stalled(pods []Pod) *Pod {
	order := slices.DeleteFunc(Order(pods, signal.MemoryAvailable), func(p Pod) bool { return p.Useless() })
	if len(order) == 0 {
		return nil
	}
	slices.SortStableFunc(order, func(a, b Pod) int { return class(a.QOS) - class(b.QOS) })
	return &order[0]
}

// class counts the QoS classes from the lowest.
func class(c corev1.PodQOSClass) int {
	switch c {
	case corev1.PodQOSBestEffort:
		return 0
	case corev1.PodQOSBurstable:
		return 1
	}
	return 2
}

package eviction

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
)

// keptRanks are the first of the pods in the order of then.
const keptRanks = 64

// Decision is what was done about a signal, why, and what came of it.
type Decision struct {
	Time      time.Time     `json:"time"`
	Signal    signal.Signal `json:"signal"`
	Threshold string        `json:"threshold"` // as the settings have it; "": the node stood still, or it is a limit
	Reason    string        `json:"reason"`
	Available int64         `json:"available"` // when it was decided; of a limit less than 0, as it is exceeded
	Limit     int64         `json:"limit"`
	Capacity  int64         `json:"capacity"`

	Crossed time.Time     `json:"crossed"` // since when there is too little
	Age     time.Duration `json:"ageNs"`   // of the figures, when it was decided

	Ranked []rank.Line `json:"ranked,omitempty"` // the first of those who might have gone
	Others int         `json:"others,omitempty"` // those after them
	Pod    Name        `json:"pod,omitzero"`     // who went; empty: nobody

	Message      string    `json:"message,omitempty"`
	GraceSeconds int64     `json:"graceSeconds"`
	Finished     bool      `json:"finished,omitempty"` // the pod had been told to end before
	Ordered      time.Time `json:"ordered,omitzero"`   // when the pod was told to end
	Hardened     time.Time `json:"hardened,omitzero"`  // when its time was over before it was
	Returned     time.Time `json:"returned,omitzero"`  // when what it had was given back

	Result Result `json:"result"`
	// Reclaimed is what was removed that nobody needed, in what the signal counts.
	Reclaimed int64 `json:"reclaimed,omitempty"`
}

// Result is what came of a decision.
type Result struct {
	Error string `json:"error,omitempty"`
	// Told says of an error that the pod was told to end all the same, and was not gone when it was waited for no more.
	Told bool `json:"told,omitempty"`
	// Known says that it is known what was available afterwards, and so how much came back.
	Known     bool  `json:"known,omitempty"`
	Available int64 `json:"available,omitempty"`
	Freed     int64 `json:"freed,omitempty"`
}

// Name says which pod.
type Name struct {
	UID       types.UID `json:"uid,omitempty"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
}

func named(p *rank.Pod) Name { return Name{UID: p.UID, Namespace: p.Namespace, Name: p.Name} }

func (n Name) String() string { return n.Namespace + "/" + n.Name }

// newDecision is that to do something about what is due.
func newDecision(d *due, now time.Time) Decision {
	out := Decision{
		Time: now, Signal: d.signal(), Reason: d.reason, Available: d.reading.Available, Capacity: d.reading.Capacity,
		Crossed: d.crossed,
	}
	if !d.reading.Time.IsZero() {
		out.Age = now.Sub(d.reading.Time)
	}
	if e := d.excess; e != nil {
		out.Available, out.Capacity, out.Age = e.Limit-e.Used, e.Limit, now.Sub(e.Time)
	}
	if d.watched != nil {
		out.Threshold, out.Limit = d.watched.String(), d.watched.At(d.reading.Capacity)
	}
	return out
}

// rank keeps the order of the pods.
func (d *Decision) rank(pods []rank.Pod, of signal.Signal) {
	lines := rank.Explain(pods, of)
	d.Others = max(0, len(lines)-keptRanks)
	d.Ranked = lines[:len(lines)-d.Others]
}

// finish completes the decisions of flights that have landed by what is available now, tells of them and keeps them.
func (m *Manager) finish(readings signal.Readings, now time.Time, next *earliest) {
	landed := m.landed
	m.landed = nil
	for _, l := range landed {
		d := l.decision
		if readings != nil {
			if waits, until := m.settling.waits(l.flight.resource(), m.judge.latest, now); waits {
				next.add(until)
				m.landed = append(m.landed, l)
				continue
			}
		}
		if r, ok := readings[d.Signal]; ok {
			d.Result = Result{Known: true, Available: r.Available, Freed: r.Available - d.Available}
		}
		if l.err != nil {
			d.Result.Error, d.Result.Told = l.err.Error(), errors.Is(l.err, ErrNotGone)
		}
		m.tell(&l, &d, now)
		if l.outcome == outcomeReclaimed && d.Reclaimed == 0 && l.err == nil || l.outcome == outcomeEased {
			continue // there was nothing to be done
		}
		if m.cfg.Decided != nil {
			m.cfg.Decided(d)
		}
	}
}

// tell logs a decision, with its times.
func (m *Manager) tell(l *landing, d *Decision, now time.Time) {
	log := m.log.With("signal", string(d.Signal), "available", d.Available, "threshold", d.Threshold,
		"reason", d.Reason)
	switch l.outcome {
	case outcomeEvicted:
		log.Warn("pod was evicted", "pod", d.Pod.String(), "uid", string(d.Pod.UID), "freed", d.Result.Freed,
			"to-order", d.Ordered.Sub(d.Crossed), "to-given-back", d.Returned.Sub(d.Ordered))
	case outcomeReclaimed:
		if l.err != nil {
			log.Warn("what no pod needs could not all be removed", "freed", d.Reclaimed, "error", l.err)
		} else if d.Reclaimed > 0 {
			log.Info("what no pod needs was removed", "freed", d.Reclaimed, "took", d.Returned.Sub(d.Time))
		}
	case outcomeEased:
		log.Info("nobody is evicted, as there is enough again", "freed", d.Result.Freed)
	case outcomeNobody:
		log.Warn("no pod can be evicted", "pods", len(l.ranked), "again", m.tried.rests[l.flight.resource()].until.Sub(now))
	case outcomeFailed:
		if d.Result.Told {
			log.Warn("pod was told to end, and is not gone yet", "pod", d.Pod.String(), "uid", string(d.Pod.UID), "error", l.err)
			break
		}
		log.Warn("pod is not evicted", "pod", d.Pod.String(), "uid", string(d.Pod.UID), "error", l.err)
	}
}

// order is how a pod ends for what is due, with kubelet's words.
func (d *due) order(pod *rank.Pod, grace int64) Order {
	of := d.signal()
	o := Order{Signal: of, GraceSeconds: grace, Resource: of.Resource(), Annotations: map[string]string{}}
	if d.excess != nil {
		o.Message = d.excess.Message
		return o
	}
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %s. ", o.Resource)
	if d.watched != nil {
		fmt.Fprintf(&text, "Threshold quantity: %s, available: %s. ",
			of.Format(d.watched.At(d.reading.Capacity)), of.Format(d.reading.Available))
	} else {
		text.WriteString(strings.ToUpper(d.reason[:1]) + d.reason[1:] + ". ")
	}
	var names, usages []string
	if pod.PodLevel && pod.Known && o.Resource == corev1.ResourceMemory {
		used := of.Format(pod.Usage)
		fmt.Fprintf(&text, "Pod %s was using %s, request is %s, has larger consumption of %s. ",
			pod.Name, used, of.Format(pod.Request), o.Resource)
		o.Annotations["offending_pod"], o.Annotations["offending_pod_usage"] = pod.Name, used
	}
	for _, c := range pod.Containers {
		if !of.Requestable() || c.Usage <= c.Request {
			continue
		}
		used := of.Format(c.Usage)
		fmt.Fprintf(&text, "Container %s was using %s, request is %s, has larger consumption of %s. ",
			c.Name, used, of.Format(c.Request), o.Resource)
		names, usages = append(names, c.Name), append(usages, used)
	}
	o.Message = text.String()
	o.Annotations["offending_containers"] = strings.Join(names, ",")
	o.Annotations["offending_containers_usage"] = strings.Join(usages, ",")
	o.Annotations["starved_resource"] = string(o.Resource)
	return o
}

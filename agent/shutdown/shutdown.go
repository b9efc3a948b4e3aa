// Package shutdown ends the pods in good order when the machine is shut down: it makes the login manager wait, ends the
// pods of each priority within the time that is theirs, the least important first, and then lets the machine go.
package shutdown

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/systemd"
)

// Period is how long the pods of a priority, and of those above it that have no period of their own, may take to end.
type Period struct {
	Priority int32
	Grace    time.Duration
}

// SystemCritical is the priority from which on pods are critical, by the API.
const SystemCritical = 2_000_000_000

// Periods are those of a total, of which the last part is for critical pods alone.
func Periods(total, critical time.Duration) []Period {
	return []Period{{0, total - critical}, {SystemCritical, critical}}
}

// Pods are the pods of the node.
type Pods interface {
	List() []*corev1.Pod
	// Subscribe begins a watch that what it returns goes on with. That must be called, once.
	Subscribe() func(ctx context.Context, fn func(watch.EventType, *corev1.Pod) error) error
	Evict(uid types.UID, e pod.Eviction) error
	// Close refuses pods that come from now on, and is called with false when they may come again.
	Close(closed bool)
}

// Config is what a [Manager] works with. All but ConfDir and Log are required.
type Config struct {
	Periods []Period
	Pods    Pods
	Boot    string // identifies the time since the machine was started
	ConfDir string // of the login manager; "" = systemd.LoginConfDir
	Log     *slog.Logger
}

// Manager waits for the shutdown of the machine.
type Manager struct {
	cfg Config
	log *slog.Logger
}

// New returns a Manager that does nothing before [Manager.Run].
func New(c Config) *Manager {
	c.Periods = slices.SortedFunc(slices.Values(c.Periods), func(a, b Period) int { return cmp.Compare(a.Priority, b.Priority) })
	if c.ConfDir == "" {
		c.ConfDir = systemd.LoginConfDir
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Manager{cfg: c, log: c.Log}
}

func (m *Manager) total() time.Duration {
	var sum time.Duration
	for _, p := range m.cfg.Periods {
		sum += p.Grace
	}
	return sum
}

// Longest wait between two tries to reach a login manager that is away: there is no event of its coming back without a
// bus.
const longestRetry = 30 * time.Second

// askTimeout is how long pods wait for the login manager to say whether they may come.
const askTimeout = 2 * time.Second

// Ask refuses pods from the start when the machine is being shut down: an agent before us may have been killed in the
// middle of it. It is called before any pod comes. What cannot be asked is asked again by [Manager.Run].
func (m *Manager) Ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	login, err := systemd.DialLogin(ctx)
	if err != nil {
		return
	}
	defer login.Close()
	if down, err := login.Preparing(); err == nil && down {
		m.cfg.Pods.Close(true)
	}
}

// Run waits for shutdowns until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	said := ""
	for wait := time.Second; ctx.Err() == nil; wait = min(2*wait, longestRetry) {
		began := time.Now()
		err := m.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longestRetry {
			wait = time.Second
		}
		// A machine without a login manager has none at the next try either.
		if text := err.Error(); text != said {
			m.log.Warn("a shutdown of the machine would not wait for pods", "error", err)
			said = text
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// serve holds the inhibitor of one connection.
func (m *Manager) serve(ctx context.Context) error {
	login, err := systemd.DialLogin(ctx)
	if err != nil {
		return err
	}
	defer login.Close()
	if err := m.raise(ctx, login); err != nil {
		return err
	}
	var lock *os.File // a nil one can be closed, too
	defer func() { lock.Close() }()
	// It may have begun before somebody listened.
	down, err := login.Preparing()
	for ended := false; err == nil; down, err = login.Next(ctx) {
		if down {
			m.end(ctx)
			ended = true
			lock.Close() // the machine may go
			continue
		}
		if ended {
			m.log.Info("the machine is not shut down after all")
		}
		ended = false
		m.cfg.Pods.Close(false)
		lock.Close()
		if lock, err = m.inhibit(ctx, login); err != nil {
			break
		}
	}
	return err
}

func (m *Manager) inhibit(ctx context.Context, login *systemd.Login) (*os.File, error) {
	return login.Inhibit(ctx, "berth", "pods are given the time to end")
}

// raise makes the login manager wait long enough, where it would not.
func (m *Manager) raise(ctx context.Context, login *systemd.Login) error {
	have, err := login.MaxDelay()
	if err != nil || have >= m.total() {
		return err
	}
	if err := login.RaiseMaxDelay(ctx, m.cfg.ConfDir, m.total()); err != nil {
		m.log.Warn("a shutdown may not wait for all pods", "waits", have, "wanted", m.total(), "error", err)
		return nil
	}
	m.log.Info("shutdowns wait longer from now on", "waited", have, "wanted", m.total(), "by", m.cfg.ConfDir+"/"+systemd.DelayConf)
	return nil
}

// group is the pods that end together.
type group struct {
	period Period
	pods   []*corev1.Pod
}

// groups divides pods among the periods: each to the one with the highest priority that is not above its own, and those
// that are below all to the first. Periods without pods are left out: nobody waits for nothing.
func groups(periods []Period, pods []*corev1.Pod) []group {
	all := make([]group, len(periods))
	for i, p := range periods {
		all[i].period = p
	}
	for _, p := range pods {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		at := 0
		for i, period := range periods {
			if priority(p) >= period.Priority {
				at = i
			}
		}
		all[at].pods = append(all[at].pods, p)
	}
	return slices.DeleteFunc(all, func(g group) bool { return len(g.pods) == 0 })
}

func priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

const message = "Pod was terminated in response to imminent node shutdown."

// end ends all pods, and returns when they have ended or their time is over.
func (m *Manager) end(ctx context.Context) {
	m.log.Info("the machine is shut down, pods are ended")
	m.cfg.Pods.Close(true)
	for _, g := range groups(m.cfg.Periods, m.cfg.Pods.List()) {
		for _, p := range g.pods {
			if err := m.cfg.Pods.Evict(p.UID, eviction(p, g.period.Grace, m.cfg.Boot)); err != nil {
				m.log.Warn("pod is not ended", "pod", p.Namespace+"/"+p.Name, "uid", string(p.UID), "error", err)
			}
		}
		if err := m.wait(ctx, g); err != nil {
			m.log.Warn("pods have not ended in their time", "priority", g.period.Priority, "grace", g.period.Grace, "error", err)
		}
	}
}

// eviction is the order to a pod: its own time to end where that is shorter.
func eviction(p *corev1.Pod, period time.Duration, boot string) pod.Eviction {
	grace := int64(period / time.Second)
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil && *s < grace {
		grace = *s
	}
	return pod.Eviction{
		Reason: "Terminated", Message: message, GraceSeconds: grace, Boot: boot, Return: pod.ReturnOpened,
		Conditions: []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: message,
		}},
	}
}

type allEnded struct{}

func (allEnded) Error() string { return "all have ended" }

// wait returns when the pods of a group have ended, or with an error when their time is over before.
func (m *Manager) wait(ctx context.Context, g group) error {
	ctx, cancel := context.WithTimeout(ctx, g.period.Grace)
	defer cancel()
	follow := m.cfg.Pods.Subscribe()
	left := map[types.UID]bool{}
	for _, p := range m.cfg.Pods.List() { // nothing tells of those that had gone before
		if slices.ContainsFunc(g.pods, func(q *corev1.Pod) bool { return q.UID == p.UID }) {
			left[p.UID] = true
		}
	}
	if len(left) == 0 {
		cancel()
	}
	err := follow(ctx, func(t watch.EventType, p *corev1.Pod) error {
		if t == watch.Deleted || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			delete(left, p.UID)
		}
		if len(left) == 0 {
			return allEnded{}
		}
		return nil
	})
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("%d are left: %w", len(left), err)
}

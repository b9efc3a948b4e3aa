package kills

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/cgroups/oom"
)

const (
	logAgain  = 5 * time.Second        // until the log is opened again; twice as long each time
	logSeldom = 30 * time.Minute       // at most: who may not read it may hardly ever
	killDelay = 100 * time.Millisecond // gathers the kills of a group that dies as a whole
	countTime = time.Second            // between two looks at the machine's count of kills, without the log
	openTime  = 500 * time.Millisecond // between two looks at what became of containers, beside what is told of pods
)

// Run keeps reports until ctx ends.
func (k *Manager) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-k.cfg.Read: // whose the kills in the log are
	}
	done := make(chan struct{})
	defer func() { <-done }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(done)
		_ = k.cfg.Watch(ctx, func(watch.EventType, *corev1.Pod) error {
			select {
			case k.changed <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	k.persist(ctx, func() error { return k.follow(ctx, oom.LogPath) }, k.count)
}

// persist follows the log. When that has ended it counts for some time, and follows again.
func (k *Manager) persist(ctx context.Context, follow func() error, count func(context.Context)) {
	wait, told := logAgain, ""
	for ctx.Err() == nil {
		began := time.Now()
		err := follow()
		if time.Since(began) > wait { // it could be read
			wait, told = logAgain, ""
		}
		if err != nil && ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			k.cfg.Log.Info("kills for want of memory are told without what the process had", "error", err)
		}
		until, cancel := context.WithTimeout(ctx, wait)
		count(until)
		cancel()
		wait = min(2*wait, logSeldom)
	}
}

// follow reads the log from its beginning, since some of it may have been written while no agent ran.
func (k *Manager) follow(ctx context.Context, log string) error {
	l, err := oom.OpenLog(log, false)
	if err != nil {
		return err
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found, ended := make(chan oom.Kill), make(chan error, 1)
	go func() {
		ended <- l.Follow(ctx, func(one oom.Kill) {
			select {
			case found <- one:
			case <-ctx.Done():
			}
		})
	}()
	var burst []heard
	var whole <-chan time.Time
	settle := func() {
		k.settle(burst)
		burst, whole = nil, nil
	}
	for {
		select {
		case one := <-found:
			if len(burst) >= maxBurst {
				settle()
			}
			if burst = append(burst, k.hear(one, len(burst))); whole == nil {
				whole = time.After(killDelay)
			}
		case <-whole:
			settle()
		case <-k.changed:
			k.step(time.Now())
		case <-k.ticks():
			k.step(time.Now())
		case err := <-ended:
			settle()
			return err
		}
	}
}

// heard is a kill of the log, with what its groups said at once: they may go with the last process of a pod.
type heard struct {
	oom.Kill
	groups []oom.Figures
}

// maxLooks is how many of one burst are worth it.
const maxLooks = 20

func (k *Manager) hear(one oom.Kill, before int) heard {
	h := heard{Kill: one}
	if before < maxLooks && one.Seq > k.seq && one.With == 0 && k.ours(one.Group) {
		h.groups = k.look(one.Group, one.LimitGroup)
	}
	return h
}

// ours says whether a group is a pod's.
func (k *Manager) ours(group string) bool { return strings.HasPrefix(group, k.cfg.Groups.Top()+"/") }

// maxBurst bounds the kills that are taken for one burst.
const maxBurst = 1000

// ticks is when to look at what is open; never while nothing is.
func (k *Manager) ticks() <-chan time.Time {
	if len(k.open) == 0 {
		return nil
	}
	return time.After(openTime)
}

// settle makes reports of kills that the log has told of one after the other.
func (k *Manager) settle(burst []heard) {
	var fresh []*oom.Report
	var homeless []oom.Kill
	for _, one := range burst {
		known := one.Seq <= k.seq
		k.seq = max(k.seq, one.Seq)
		switch {
		case known || k.known(&one.Kill):
		case one.Group == "":
			homeless = append(homeless, one.Kill)
		case !k.ours(one.Group):
		case one.With != 0 && k.joins(fresh, one.Kill):
		default:
			fresh = append(fresh, &oom.Report{Source: oom.FromLog, Kill: one.Kill, Count: 1, Groups: one.groups})
		}
	}
	for _, r := range fresh {
		k.add(r)
	}
	if len(homeless) > 0 { // the log leaves out whose they were when there is much to tell
		k.reckon(homeless)
	}
	if len(fresh) > 0 || len(homeless) > 0 {
		k.step(time.Now())
		k.save()
	}
}

// joins counts a process with the one that it had to die with.
func (k *Manager) joins(fresh []*oom.Report, one oom.Kill) bool {
	for _, r := range slices.Backward(slices.Concat(k.kept, fresh)) {
		if r.Source != oom.FromLog || r.Kill.Pid != one.With || one.Time.Sub(r.Kill.Time) > time.Second {
			continue
		}
		r.Count++
		if len(r.Others) < maxOthers {
			r.Others = append(r.Others, one)
		}
		return true
	}
	return false
}

// known says whether a kill was kept by an agent that did not write down how far it had read the log.
func (k *Manager) known(one *oom.Kill) bool {
	return slices.ContainsFunc(k.kept, func(r *oom.Report) bool {
		o := &r.Kill
		// The time is by the clock, which may have been set since.
		return o.Seq == 0 && o.Pid != 0 && o.Pid == one.Pid && o.Group == one.Group && o.Comm == one.Comm && o.Anon == one.Anon &&
			o.Time.Sub(one.Time).Abs() < time.Minute
	})
}

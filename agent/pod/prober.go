package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/probes"
)

// prober runs the probes of one pod's containers. The worker tells it which containers run; what the probes come to
// goes to the worker's mailbox, and to a file, so that a restart of the agent does not make a ready container unready.
type prober struct {
	node *node
	uid  types.UID
	mail *mailbox
	log  *slog.Logger
	stop map[string]context.CancelFunc // by container ID
	of   map[string]probed             // by container ID
	wait sync.WaitGroup

	mu      sync.Mutex
	results map[string]plan.ProbeResults // by container ID
}

func newProber(n *node, uid types.UID, mail *mailbox, log *slog.Logger) *prober {
	return &prober{node: n, uid: uid, mail: mail, log: log, stop: map[string]context.CancelFunc{}, of: map[string]probed{}}
}

// probed is a container that is to be probed.
type probed struct {
	pod  *corev1.Pod
	spec *corev1.Container
	id   string
	at   time.Time // its start, from which delays count
	ip   string
}

// probe has exactly the containers probed that run and have their postStart hook behind them. A pod that is to end is
// not asked any more: what its probes have come to stays.
func (w *worker) probe(ctx context.Context) {
	want := map[string]bool{}
	for _, list := range [][]corev1.Container{w.pod.Spec.InitContainers, w.pod.Spec.Containers} {
		for i := range list {
			c, now := &list[i], w.observer.seen.Latest(list[i].Name)
			if w.fate.end != nil || !hasProbe(c) || now == nil || now.GetState() != plan.Running {
				continue
			}
			if _, starts := w.work.tasks[plan.Step{Kind: plan.Start, Container: c.Name}.Key()]; starts {
				continue
			}
			want[now.GetId()] = true
			if w.prober.stop[now.GetId()] == nil {
				t := probed{pod: w.pod, spec: c, id: now.GetId(), at: time.Unix(0, now.GetStartedAt())}
				if ips := w.podIPs(); len(ips) > 0 {
					t.ip = ips[0]
				}
				w.prober.begin(ctx, t)
			}
		}
	}
	for id, stop := range w.prober.stop {
		if !want[id] {
			stop()
			delete(w.prober.stop, id)
			w.prober.ended(id)
			w.prober.forget(id, w.fate.end != nil)
		}
	}
	if all := w.mail.probes.Load(); all != nil {
		w.probes = *all // what is known already counts at once
	}
}

// end stops all probes and waits for that.
func (p *prober) end() {
	for _, stop := range p.stop {
		stop()
	}
	p.wait.Wait()
	for id := range p.of {
		p.ended(id)
	}
}

// ended tells of a container whose probes have been stopped; what they still answer is not heard.
func (p *prober) ended(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.of[id]; p.node.cfg.Observers.Probes != nil {
		p.node.cfg.Observers.Probes.ProbesEnded(t.pod, t.spec.Name)
	}
	delete(p.of, id)
}

func hasProbe(c *corev1.Container) bool {
	return c.StartupProbe != nil || c.LivenessProbe != nil || c.ReadinessProbe != nil
}

// begin probes a container: first whether it has started, then the rest.
func (p *prober) begin(ctx context.Context, t probed) {
	ctx, p.stop[t.id] = context.WithCancel(ctx)
	p.of[t.id] = t
	had := p.known(t.id)
	rest := func() {
		p.run(ctx, t, probes.Liveness, t.spec.LivenessProbe)
		p.run(ctx, t, probes.Readiness, t.spec.ReadinessProbe)
	}
	if t.spec.StartupProbe == nil || had.Startup == plan.ProbePassed {
		rest()
		return
	}
	p.runThen(ctx, t, probes.Startup, t.spec.StartupProbe, rest)
}

// known is what the probes of a container have come to, also under the agent before this one.
func (p *prober) known(id string) plan.ProbeResults {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.results == nil {
		p.results = map[string]plan.ProbeResults{}
		data, err := os.ReadFile(p.file())
		if err == nil {
			err = json.Unmarshal(data, &p.results)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.log.Warn("results of probes cannot be read", "error", err)
		}
	}
	r, ok := p.results[id]
	if ok {
		p.mail.putProbes(id, r)
	}
	return r
}

// forget drops the results of a container that does not run any more, unless they are to stay.
func (p *prober) forget(id string, stay bool) {
	if stay {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.results, id)
	p.mail.dropProbes(id)
}

func (p *prober) file() string {
	return filepath.Join(p.node.cfg.RootDir, "pods", string(p.uid), "probes.json")
}

func (p *prober) run(ctx context.Context, t probed, kind probes.Kind, probe *corev1.Probe) {
	p.runThen(ctx, t, kind, probe, nil)
}

// runThen runs one probe, and calls then after its first success, if it is not nil.
func (p *prober) runThen(ctx context.Context, t probed, kind probes.Kind, probe *corev1.Probe, then func()) {
	if probe == nil {
		return
	}
	period, err := probes.Period(t.pod, probe)
	ask := probes.Question(nil)
	if err == nil {
		ask, err = probes.New(probe, probes.Target{PodIP: t.ip, Container: t.spec, Exec: p.exec(t.id, probe)})
	}
	if err != nil { // which was looked at before the pod was taken
		p.node.containerEvent(t.pod, t.spec.Name, corev1.EventTypeWarning, "Unhealthy", "%s probe cannot be asked: %v", kind,
			err)
		return
	}
	loop := probes.Loop{
		Kind: kind, Probe: probe, Period: period, StartedAt: t.at, Fast: true,
		Ask: p.tell(t, kind, period, p.count(ctx, t, kind, ask)),
		Report: func(r probes.Result) {
			p.report(ctx, t, kind, r.OK)
			if r.OK && then != nil {
				then()
				then = nil
			}
		},
	}
	p.wait.Go(func() { loop.Run(ctx) })
}

// report takes a result. It comes from the probe's own goroutine.
func (p *prober) report(ctx context.Context, t probed, kind probes.Kind, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return // the container has ended or is about to
	}
	before, to := p.results[t.id], plan.ProbeFailed
	r := before
	if ok {
		to = plan.ProbePassed
	}
	switch kind {
	case probes.Startup:
		r.Startup = to
	case probes.Liveness:
		r.Liveness = to
	case probes.Readiness:
		r.Readiness = to
	}
	p.results[t.id] = r
	if r != before {
		p.log.Debug("probe has another result", "container", t.spec.Name, "id", t.id, "probe", string(kind), "passed", ok)
	}
	// What is told is kept first: an agent that is killed in between would have told that a container is ready, and its
	// successor that it is not.
	if err := p.write(); err != nil {
		p.log.Warn("results of probes are not kept", "error", err)
	}
	p.mail.putProbes(t.id, r)
}

// write keeps the results. The file goes with the pod's directory, and is not made again when that has gone.
func (p *prober) write() error {
	err := record.Write(p.file(), p.results)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// count tells of each answer how long it took. run is the context of the probes.
func (p *prober) count(run context.Context, t probed, kind probes.Kind, ask probes.Question) probes.Question {
	if p.node.cfg.Observers.Probes == nil {
		return ask
	}
	return func(ctx context.Context) (probes.Outcome, string) {
		began := time.Now()
		outcome, message := ask(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		if run.Err() == nil {
			p.node.cfg.Observers.Probes.Probed(t.pod, t.spec.Name, kind, outcome, time.Since(began))
		}
		return outcome, message
	}
}

// tell adds an event to each failure, once a period at most: while a probe waits for its first success it asks more
// often.
func (p *prober) tell(t probed, kind probes.Kind, period time.Duration, ask probes.Question) probes.Question {
	var told time.Time
	return func(ctx context.Context) (probes.Outcome, string) {
		outcome, message := ask(ctx)
		if outcome != probes.Success && time.Since(told) >= period && !errors.Is(context.Cause(ctx), context.Canceled) {
			told = time.Now()
			p.node.containerEvent(t.pod, t.spec.Name, corev1.EventTypeWarning, "Unhealthy", "%s probe failed: %s", kind, message)
		}
		return outcome, message
	}
}

// exec runs the command of a probe in the container.
func (p *prober) exec(id string, probe *corev1.Probe) probes.Exec {
	return func(ctx context.Context, command []string) (int, []byte, error) {
		// The runtime ends the command by itself too, so that it ends with this process.
		r, err := p.node.cfg.Runtime.ExecSync(wantOutput(ctx, probes.MaxOutput), &runtimeapi.ExecSyncRequest{
			ContainerId: id, Cmd: command, Timeout: int64(max(1, probe.TimeoutSeconds)),
		})
		if grpcstatus.Code(err) == codes.DeadlineExceeded {
			return 1, fmt.Appendf(nil, "command timed out: %q", strings.Join(command, " ")), nil
		}
		if grpcstatus.Code(err) == codes.Unavailable {
			return 0, nil, fmt.Errorf("%w: %w", probes.ErrNotAsked, err) // however long that took to be known
		}
		if err != nil {
			return 0, nil, err
		}
		return int(r.GetExitCode()), output(r, probes.MaxOutput), nil
	}
}

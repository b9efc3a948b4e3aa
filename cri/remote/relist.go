package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// thing is a sandbox or container as the lists tell of it.
type thing struct {
	sandbox string // a container's sandbox, "" for a sandbox
	created int64
	started bool
	stopped bool
}

type things map[string]thing

// relister compares the lists of a runtime that has no stream of events, when there is reason to: a process has ended,
// or somebody here has made a call that changes something. What others do to the runtime shows only when a process ends
// by it, so it is asked for its lists now and then besides.
type relister struct {
	sandboxes     sandboxes
	containers    containers
	changed       <-chan struct{} // a call was made that changes what there is
	relist, check time.Duration   // how often while something runs whose end the kernel does not tell, and otherwise
	log           *slog.Logger
}

// follower is what the relister knows from one list to the next.
type follower struct {
	relister  relister
	processes *processes
	before    listing
	expected  map[string]bool // ended as the kernel says, and not yet as the runtime does
	bare      map[string]bool // sandboxes without a process
	blind     bool            // something runs whose process is not known
	retry     time.Duration   // the last delay of those that wait for the runtime to know
}

const (
	gather     = 20 * time.Millisecond // calls are made one after the other
	firstRetry = 5 * time.Millisecond
)

// events tells what has changed between two lists as events, until ctx ends. Two calls a round are the least there is:
// the lists have neither exit codes nor addresses, which who hears the event asks for.
func (r relister) events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &follower{relister: r, processes: newProcesses(), expected: map[string]bool{}, bare: map[string]bool{}}
	defer f.processes.close()
	now, err := r.lists(ctx)
	if err != nil {
		return err
	}
	f.see(ctx, now)
	for {
		timer := time.NewTimer(f.delay())
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case id := <-f.processes.ended:
			f.expect(id)
		case <-r.changed:
			sleep(ctx, gather)
			select { // what was done meanwhile is seen, too
			case <-r.changed:
			default:
			}
		case <-timer.C:
		}
		timer.Stop()
		if now, err = r.lists(ctx); err != nil {
			return err
		}
		for _, e := range changes(f.before, now.things) {
			if s, ok := now.sandboxes[e.PodSandboxStatus.Id]; ok {
				e.PodSandboxStatus = s
			} else if s, ok := f.before.sandboxes[e.PodSandboxStatus.Id]; ok {
				e.PodSandboxStatus = s
			}
			fn(e)
		}
		f.see(ctx, now)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// expect remembers that the runtime should know of an end. It learns of it when we do, and takes its time.
func (f *follower) expect(id string) {
	f.processes.forget(id)
	f.expected[id] = true
	f.retry = 0
}

// delay is how long nothing needs to be looked at if nothing happens.
func (f *follower) delay() time.Duration {
	switch {
	case len(f.expected) > 0:
		f.retry = min(max(2*f.retry, firstRetry), f.relister.relist)
		return f.retry
	case f.blind:
		return f.relister.relist
	}
	return f.relister.check
}

// see takes a list for what is, and watches the processes of what runs.
func (f *follower) see(ctx context.Context, now listing) {
	f.before, f.blind = now, false
	runs := func(id string) bool { t, ok := now.things[id]; return ok && t.started && !t.stopped }
	for id := range f.processes.watched {
		if !runs(id) {
			f.processes.forget(id)
		}
	}
	for id := range f.expected {
		if !runs(id) {
			delete(f.expected, id)
		}
	}
	maps.DeleteFunc(f.bare, func(id string, _ bool) bool { return !runs(id) })
	for id, t := range now.things {
		if _, ok := f.processes.watched[id]; ok || !runs(id) || f.expected[id] || f.bare[id] {
			continue
		}
		pid := f.relister.pid(ctx, id, t.sandbox == "")
		switch {
		case pid == 0 && t.sandbox == "":
			// CRI-O's sandboxes need no process: they do not end by themselves then, and never get one
			f.bare[id] = true
		case pid <= 0:
			f.blind = true
		default:
			err := f.processes.watch(ctx, id, pid)
			if errors.Is(err, unix.ESRCH) {
				f.expect(id)
			} else if err != nil {
				f.relister.log.Debug("process is not watched", "id", id, "pid", pid, "error", err)
				f.blind = true
			}
		}
	}
}

type listing struct {
	things
	sandboxes map[string]*runtimeapi.PodSandboxStatus
}

func (r relister) lists(ctx context.Context) (listing, error) {
	l := listing{things{}, map[string]*runtimeapi.PodSandboxStatus{}}
	pods, err := r.sandboxes.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return l, fmt.Errorf("list sandboxes: %w", err)
	}
	all, err := r.containers.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return l, fmt.Errorf("list containers: %w", err)
	}
	for _, s := range pods.Items {
		stopped := s.State == runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		l.things[s.Id] = thing{created: s.CreatedAt, started: true, stopped: stopped}
		l.sandboxes[s.Id] = &runtimeapi.PodSandboxStatus{
			Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels,
			Annotations:    s.Annotations,
			RuntimeHandler: s.RuntimeHandler,
		}
	}
	for _, c := range all.Containers {
		l.things[c.Id] = thing{
			sandbox: c.PodSandboxId, created: c.CreatedAt,
			started: c.State != runtimeapi.ContainerState_CONTAINER_CREATED,
			stopped: c.State == runtimeapi.ContainerState_CONTAINER_EXITED,
		}
	}
	return l, nil
}

// pid asks for the number of the first process of a sandbox or container; 0 when the runtime does not tell it, -1 when
// it does not answer. It is not of the CRI proper, but containerd and CRI-O tell it alike to who wants to know more.
func (r relister) pid(ctx context.Context, id string, sandbox bool) int {
	var info map[string]string
	if sandbox {
		s, err := r.sandboxes.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{
			PodSandboxId: id, Verbose: true,
		})
		if err != nil {
			return -1
		}
		info = s.GetInfo()
	} else {
		s, err := r.containers.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
		if err != nil {
			return -1
		}
		info = s.GetInfo()
	}
	var more struct{ PID int }
	if json.Unmarshal([]byte(info["info"]), &more) != nil {
		return 0
	}
	return more.PID
}

// changes are the events that lead from one list to the next. What came and went in between is not seen.
func changes(before listing, now things) []*runtimeapi.ContainerEventResponse {
	var events []*runtimeapi.ContainerEventResponse
	tell := func(kind runtimeapi.ContainerEventType, id string, t thing) {
		sandbox := t.sandbox
		if sandbox == "" {
			sandbox = id
		}
		events = append(events, &runtimeapi.ContainerEventResponse{
			ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano(),
			PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: sandbox},
		})
	}
	for id, t := range now {
		old, known := before.things[id]
		if !known {
			tell(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, id, t)
		}
		if t.started && !old.started {
			tell(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, id, t)
		}
		if t.stopped && !old.stopped {
			tell(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, id, t)
		}
	}
	for id, t := range before.things {
		if _, ok := now[id]; !ok {
			tell(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, id, t)
		}
	}
	return events
}

package environment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/internal/disk"
)

// The parts of an environment whose failures are told in words of their own.
const (
	PartVolumes = "volumes"
	PartSandbox = "sandbox"
)

// Error says which part of an environment could not be made or removed.
type Error struct {
	Part string // a resource's is its name
	Err  error
}

func (e *Error) Error() string { return e.Part + ": " + e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// hook is one part of an environment. Both of its verbs can be repeated; undo is safe when do never ran.
type hook struct {
	part     string
	do, undo func(context.Context) error
}

// hooks are in the order of making; those of one stage do not depend on each other. Undoing goes the other way. The
// directory is the record: it comes first and goes last, so that whatever is left of a pod is found by it.
func (e *Environment) hooks() [][]hook {
	early, beside := func(context.Context) error { return nil }, e.makeCgroup
	if e.cfg.GroupFirst {
		early, beside = e.makeCgroup, early
	}
	first := [][]hook{
		{{"directory", e.files.makeDirectory, e.volumes.remove}}, // volumes are in the directory and go with it
	}
	return append(append(first, e.resourceHooks()...), // what was prepared may be in use until the group is gone
		// A runtime that was told to start a container by an agent that is dead makes the log's directory, until the
		// sandbox is gone.
		[]hook{{"cgroup", early, e.removeCgroup}, {"logs", nil, e.files.removeLogs}},
		[]hook{
			{PartSandbox, func(ctx context.Context) error { return e.sandbox.make(ctx, e.files.ids) }, e.sandbox.removeAll},
			// The sandbox needs no more of the group than its path; a runtime makes what is missing of it. The kernel
			// lets everybody who makes a group wait for milliseconds while a process is moved between groups, so that
			// much is waited for beside.
			{"cgroup", beside, nil},
			{PartVolumes, e.volumes.make, nil},
			{"files", e.files.make, nil},
		})
}

// resourceHooks are one stage for each resource.
func (e *Environment) resourceHooks() [][]hook {
	var out [][]hook
	for _, r := range e.cfg.Resources {
		out = append(out, []hook{{
			r.Name(),
			func(ctx context.Context) error { return r.Prepare(ctx, e.pod) },
			func(ctx context.Context) error { return r.Release(ctx, e.pod) },
		}})
	}
	return out
}

// Make makes all of the environment. What it has made when it fails stays for the next try.
func (e *Environment) Make(ctx context.Context, w Wanted) error {
	e.sandbox.want, e.sandbox.id = w, w.ID
	for _, stage := range e.hooks() {
		if err := e.together(ctx, stage, "", func(h hook) func(context.Context) error { return h.do }); err != nil {
			return err
		}
	}
	return e.files.writeHosts(e.sandbox.ips)
}

// Remove removes all of it, the last stage first. It stops at the first error: what comes before may be in use by what
// is left.
func (e *Environment) Remove(ctx context.Context) error {
	for _, stage := range slices.Backward(e.hooks()) {
		if err := e.together(ctx, stage, "remove ", func(h hook) func(context.Context) error { return h.undo }); err != nil {
			return err
		}
	}
	return nil
}

// together runs one verb of the hooks of a stage side by side. None is cut off because another has failed: half of an
// act takes longer to mend than all of it.
func (e *Environment) together(
	ctx context.Context, stage []hook, prefix string, verb func(hook) func(context.Context) error,
) error {
	one := func(h hook) error {
		act := verb(h)
		if act == nil {
			return nil
		}
		ctx, end := e.cfg.Node.Begin(ctx, e.pod, prefix+h.part)
		err := act(ctx)
		end(err)
		if err != nil {
			return &Error{h.part, err}
		}
		return nil
	}
	var g errgroup.Group
	for _, h := range stage[1:] {
		g.Go(func() error { return one(h) })
	}
	err := one(stage[0])
	return errors.Join(err, g.Wait())
}

// Renewed is the environment of the pod as it is defined now, with volumes that have what the pod and its objects say
// now. The one that it is made of stays as it is: others may be reading it.
func (e *Environment) Renewed(ctx context.Context, pod *corev1.Pod) (*Environment, error) {
	out := *e
	out.pod, out.files.pod, out.sandbox.pod, out.volumes.pod = pod, pod, pod, pod
	if err := out.volumes.make(ctx); err != nil {
		return nil, &Error{PartVolumes, err}
	}
	return &out, nil
}

// RemoveSandbox ends and removes one sandbox of the pod.
func (e *Environment) RemoveSandbox(ctx context.Context, id string) error {
	return e.sandbox.remove(ctx, id)
}

// Release gives back what a pod does not need that is over: its network, its group, its resources and its volumes. Its
// directory stays, for the last words of its containers and for what keep writes there, before the volumes go, so that
// it is at no time without; on a disk without room, after.
func (e *Environment) Release(ctx context.Context, keep func() error) error {
	for _, id := range e.sandbox.known {
		if err := e.sandbox.stop(ctx, id); err != nil {
			return fmt.Errorf("stop sandbox: %w", err)
		}
	}
	if err := e.removeCgroup(ctx); err != nil {
		return err
	}
	// The last one first: what comes before may be what it was made of.
	for _, r := range slices.Backward(e.cfg.Resources) {
		if err := r.Release(ctx, e.pod); err != nil {
			return &Error{r.Name(), err}
		}
	}
	e.volumes.forget()
	err := e.record(ctx, keep)
	if err != nil && !disk.Unwritable(err) {
		return err
	}
	if rerr := e.cfg.Volumes.Release(ctx, e.pod.UID); rerr != nil {
		return errors.Join(err, rerr)
	}
	if err == nil {
		return nil
	}
	// What has no room may have it now: it may have been the pod that had filled the disk.
	if err := e.record(ctx, keep); err != nil {
		return &Unrecorded{err}
	}
	return nil
}

// Unrecorded is of a pod that has given back what it had, and there is no room to write down what is known of it still:
// others may have taken at once what it has given back.
type Unrecorded struct{ Err error }

func (e *Unrecorded) Error() string { return e.Err.Error() }
func (e *Unrecorded) Unwrap() error { return e.Err }

// record writes down what is known of a pod that is over. It may be over before it had a directory.
func (e *Environment) record(ctx context.Context, keep func() error) error {
	if err := e.files.makeDirectory(ctx); err != nil {
		return err
	}
	return keep()
}

func (e *Environment) makeCgroup(context.Context) error {
	_, err := e.cfg.Cgroups.EnsurePod(e.pod)
	return err
}

func (e *Environment) removeCgroup(ctx context.Context) error {
	return e.cfg.Cgroups.RemovePod(ctx, e.pod.UID, e.cfg.Cgroups.PodPath(e.pod))
}

package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
)

// step is one act on the machine, and what takes it back. Either may run any number of times and be cut off at any line: do
// on what is done already does nothing, undo is safe when do never ran. A nil function is nothing to be done.
type step struct {
	name string
	do   func(context.Context) error
	undo func(context.Context) error
}

// plan is the way from nothing to a running thing. Its stages follow each other; the steps of one stage do not depend on
// each other and run side by side.
type plan [][]step

// runner runs plans. at, when it is set, is called before and after every do and undo: tests die there.
type runner struct {
	log *slog.Logger
	at  func(point string)
}

// named is what a plan is for, as the log has it.
type named interface{ logAttrs() []any }

func (r *runner) point(what, verb, name, when string) {
	if r.at != nil {
		r.at(what + "/" + verb + "/" + name + "/" + when)
	}
}

// run does all of p. When a step fails it undoes what was begun, in reverse order and even if ctx has ended, and returns the
// step's error; undone is false when that did not work out, and undo is to be tried again.
func (r *runner) run(ctx context.Context, of named, what string, p plan) (undone bool, err error) {
	for i, stage := range p {
		err := r.stage(ctx, of, what, "do", stage, func(s step) func(context.Context) error { return s.do })
		if err == nil {
			continue
		}
		if undoErr := r.undo(context.WithoutCancel(ctx), of, what, p[:i+1]); undoErr != nil {
			return false, fmt.Errorf("%w (and then: %w)", err, undoErr)
		}
		return true, err
	}
	return false, nil
}

// undo undoes all of p in reverse order. It goes on after errors: what comes before does not depend on what comes after.
func (r *runner) undo(ctx context.Context, of named, what string, p plan) error {
	var errs []error
	for _, stage := range slices.Backward(p) {
		errs = append(errs, r.stage(ctx, of, what, "undo", stage, func(s step) func(context.Context) error { return s.undo }))
	}
	return errors.Join(errs...)
}

func (r *runner) stage(ctx context.Context, of named, what, verb string, stage []step, act func(step) func(context.Context) error) error {
	one := func(ctx context.Context, s step) error {
		f := act(s)
		if f == nil {
			return nil
		}
		ctx, span := tracer(ctx).Start(ctx, verb+" "+s.name)
		defer span.End()
		began := time.Now()
		r.point(what, verb, s.name, "before")
		if err := f(ctx); err != nil {
			return fmt.Errorf("%s %s: %w", verb, s.name, err)
		}
		r.point(what, verb, s.name, "after")
		if r.log != nil && r.log.Enabled(ctx, slog.LevelDebug) {
			r.log.Debug("runtime's step is done", append(of.logAttrs(), "of", what, "step", verb+" "+s.name, "took", time.Since(began))...)
		}
		return nil
	}
	if len(stage) == 1 {
		return one(ctx, stage[0])
	}
	// Without a shared context: a step that is cut off half-way takes longer to undo than one that is done.
	var g errgroup.Group
	for _, s := range stage[1:] {
		g.Go(func() error { return one(ctx, s) })
	}
	err := one(ctx, stage[0])
	return errors.Join(err, g.Wait())
}

func tracer(ctx context.Context) trace.Tracer {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/cri")
}

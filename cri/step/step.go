// Package step is how things are made of steps that can be taken back.
package step

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

// Act does something to the machine, or takes it back.
type Act = func(context.Context) error

// Step is one act on the machine, and what takes it back. Either may run any number of times and be cut off at any
// line: do on what is done already does nothing, undo is safe when do never ran. A nil function is nothing to be done.
type Step struct {
	Name string
	Do   Act
	Undo Act
}

// Plan is the way from nothing to a running thing. Its stages follow each other; the steps of one stage do not depend
// on each other and run side by side.
type Plan [][]Step

// Runner runs plans. at, when it is set, is called before and after every do and undo: tests die there.
type Runner struct {
	Log *slog.Logger
	At  func(point string)
}

// named is what a plan is for, as the log has it.
type named interface{ LogAttrs() []any }

// Point tells At where the work is.
func (r *Runner) Point(what, verb, name, when string) {
	if r.At != nil {
		r.At(what + "/" + verb + "/" + name + "/" + when)
	}
}

// Run does all of p. When a step fails it undoes what was begun, in reverse order and even if ctx has ended, and
// returns the step's error; undone is false when that did not work out, and undo is to be tried again.
func (r *Runner) Run(ctx context.Context, of named, what string, p Plan) (undone bool, err error) {
	for i, stage := range p {
		err := r.stage(ctx, of, what, "do", stage, func(s Step) Act { return s.Do })
		if err == nil {
			continue
		}
		if undoErr := r.Undo(context.WithoutCancel(ctx), of, what, p[:i+1]); undoErr != nil {
			return false, fmt.Errorf("%w (and then: %w)", err, undoErr)
		}
		return true, err
	}
	return false, nil
}

// Undo undoes all of p in reverse order. It goes on after errors: what comes before does not depend on what comes
// after.
func (r *Runner) Undo(ctx context.Context, of named, what string, p Plan) error {
	var errs []error
	for _, stage := range slices.Backward(p) {
		errs = append(errs, r.stage(ctx, of, what, "undo", stage, func(s Step) Act { return s.Undo }))
	}
	return errors.Join(errs...)
}

func (r *Runner) stage(ctx context.Context, of named, what, verb string, stage []Step, half func(Step) Act) error {
	one := func(ctx context.Context, s Step) error {
		f := half(s)
		if f == nil {
			return nil
		}
		ctx, span := Tracer(ctx).Start(ctx, verb+" "+s.Name)
		defer span.End()
		began := time.Now()
		r.Point(what, verb, s.Name, "before")
		if err := f(ctx); err != nil {
			return fmt.Errorf("%s %s: %w", verb, s.Name, err)
		}
		r.Point(what, verb, s.Name, "after")
		if r.Log != nil && r.Log.Enabled(ctx, slog.LevelDebug) {
			r.Log.Debug("runtime's step is done", append(of.LogAttrs(), "of", what, "step", verb+" "+s.Name, "took", time.Since(began))...)
		}
		return nil
	}
	if len(stage) == 1 {
		return one(ctx, stage[0])
	}
	// Without a shared context: a step that is cut off half-way takes longer to undo than one that is done.
	var g errgroup.Group
	for _, s := range stage[1:] {
		if half(s) != nil { // many have nothing to be undone
			g.Go(func() error { return one(ctx, s) })
		}
	}
	err := one(ctx, stage[0])
	return errors.Join(err, g.Wait())
}

// Tracer makes the spans of the runtime.
func Tracer(ctx context.Context) trace.Tracer {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/cri")
}

package drift

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
)

// persist runs what is to run until ctx ends, and runs it again some time after it has ended before: longer each time,
// up to seldom, and told once as long as the cause is the same. What has run for longer than it was waited for begins
// again with the first pause.
func persist(
	ctx context.Context, pause time.Duration, log *slog.Logger, without string, run func(context.Context) error,
) {
	wait, told := pause, ""
	for {
		began := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > wait {
			wait, told = pause, ""
		}
		if text := err.Error(); text != told {
			told = text
			log.Error(without, "error", err, "again", wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, seldom)
	}
}

// together runs parts that are of no use without each other: when one ends, all do. It returns why the first one did.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		g.Go(func() error {
			if err := part(ctx); err != nil {
				return err
			}
			return errors.New("ended by itself")
		})
	}
	return g.Wait()
}

func send[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

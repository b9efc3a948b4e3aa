package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/berth-node/berth/control/apiserver"
	"github.com/berth-node/berth/systemd"
)

const (
	// readyEvery is how often a server is asked whether it is ready, which it tells nobody by itself.
	readyEvery = 100 * time.Millisecond
)

// notify has the service manager know when the server is ready, and that it answers, until ctx ends.
func notify(ctx context.Context, server *apiserver.Server, log *slog.Logger) error {
	n := systemd.NewNotifier(log)
	for server.Ready(ctx) != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(readyEvery):
		}
	}
	n.Ready("serving")
	log.Info("control plane is ready")
	if err := n.Watchdog(ctx, server.Live); err != nil {
		return fmt.Errorf("tell service manager: %w", err)
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/berth-node/berth/control/apiserver"
	"github.com/berth-node/berth/systemd"
)

const (
	// readyEvery is how often a server is asked whether it is ready, which it tells nobody by itself.
	readyEvery = 100 * time.Millisecond
)

// newNotifier takes the service manager's socket from the libraries: the API server's says that it is ready when it
// listens, which is before it is.
func newNotifier(log *slog.Logger) (*systemd.Notifier, error) {
	const variable = "NOTIFY_SOCKET"
	socket := os.Getenv(variable)
	if err := os.Unsetenv(variable); err != nil {
		return nil, fmt.Errorf("find service manager: %w", err)
	}
	return systemd.NewNotifierAt(socket, log), nil
}

// notify has the service manager know when the server is ready, and that it answers, until ctx ends.
func notify(ctx context.Context, n *systemd.Notifier, server *apiserver.Server, log *slog.Logger) error {
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

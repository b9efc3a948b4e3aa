// Package systemd speaks to the service manager: readiness and watchdog messages, and the text of berth's own unit.
// Without systemd everything here does nothing.
package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Notifier sends sd_notify messages. The zero value is not usable; NewNotifier's is silent where no service manager
// listens.
type Notifier struct {
	log  *slog.Logger
	send func(state string) (bool, error)
}

// NewNotifier uses the socket named in NOTIFY_SOCKET.
func NewNotifier(log *slog.Logger) *Notifier {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	// The variable stays in the environment: the watchdog needs it again at every beat. Containers do not inherit ours.
	return &Notifier{log: log, send: func(s string) (bool, error) { return daemon.SdNotify(false, s) }}
}

// NewNotifierAt uses a socket by its name, and none if that is empty: for who has to take the variable away from others
// in the process that would speak for it.
func NewNotifierAt(socket string, log *slog.Logger) *Notifier {
	return &Notifier{log: log, send: func(s string) (bool, error) {
		if socket == "" {
			return false, nil
		}
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			return false, err
		}
		defer conn.Close()
		_, err = conn.Write([]byte(s))
		return err == nil, err
	}}
}

// Ready says that the node runs pods now; units ordered after ours may start.
func (n *Notifier) Ready(status string) { n.tell(daemon.SdNotifyReady, status) }

// Stopping says that the agent is on its way down, so that the stop timeout counts from here.
func (n *Notifier) Stopping() { n.tell(daemon.SdNotifyStopping, "stopping; pods go on running") }

// Reloading says that the configuration is being read again; Ready ends it. systemd demands the monotonic time to tell
// this message from one sent before its own SIGHUP.
func (n *Notifier) Reloading() {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		n.log.Warn("read monotonic clock", "error", err)
		return
	}
	n.tell(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, ts.Nano()/1000), "reloading")
}

func (n *Notifier) tell(state, status string) {
	if status != "" {
		state += "\nSTATUS=" + status
	}
	if _, err := n.send(state); err != nil {
		// Not fatal: the pods matter more than what the service manager knows of us.
		n.log.Warn("tell service manager", "state", state, "error", err)
	}
}

// Watchdog beats as often as the unit's WatchdogSec asks while healthy returns nil, until the context ends. Without a
// watchdog it returns at once. A beat that is left out makes systemd kill and restart us, which is what an agent that
// hangs needs.
func (n *Notifier) Watchdog(ctx context.Context, healthy func(context.Context) error) error {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("read watchdog interval: %w", err)
	}
	if interval <= 0 {
		return nil
	}
	return n.beat(ctx, interval/2, healthy)
}

func (n *Notifier) beat(ctx context.Context, every time.Duration, healthy func(context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		// The check may not outlast the beat: one that hangs is one that failed.
		hctx, cancel := context.WithTimeout(ctx, every)
		err := healthy(hctx)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			n.log.Error("unhealthy, leaving out a watchdog beat", "error", err)
		default:
			n.tell(daemon.SdNotifyWatchdog, "")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/systemd"
)

// settings are the settings in effect, which SIGHUP has read again.
type settings struct {
	sources *config.Sources
	current atomic.Pointer[config.Loaded]
	level   *slog.LevelVar
	notify  *systemd.Notifier
	log     *slog.Logger
	hangups chan os.Signal
}

// newSettings hears of SIGHUP from here on: by default it ends a process, and an agent that is on its way up must not
// be ended.
func newSettings(sources *config.Sources, loaded *config.Loaded, level *slog.LevelVar, notify *systemd.Notifier, log *slog.Logger) *settings {
	s := &settings{sources: sources, level: level, notify: notify, log: log, hangups: make(chan os.Signal, 1)}
	s.current.Store(loaded)
	signal.Notify(s.hangups, syscall.SIGHUP)
	return s
}

func (s *settings) configz() any { return s.current.Load().Configz() }

// run takes over what can change while the agent runs, at every SIGHUP until ctx ends.
func (s *settings) run(ctx context.Context, apply func(config.Config) error) {
	defer signal.Stop(s.hangups)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.hangups:
		}
		s.notify.Reloading()
		s.reload(apply)
		s.notify.Ready("running pods")
	}
}

func (s *settings) reload(apply func(config.Config) error) {
	next, err := s.sources.Load()
	if err == nil {
		err = apply(next.Config)
	}
	if err != nil {
		s.log.Error("configuration is not taken over, the last one stays in effect", "error", err)
		return
	}
	if w := next.Warning(); w != "" {
		s.log.Warn(w)
	}
	now, later := s.current.Load().Changes(next)
	s.current.Store(s.current.Load().With(next)) // before it is told: who reads the log asks for it
	s.level.Set(next.Level)
	s.log.Info("configuration read again", "changed", now)
	if len(later) > 0 {
		s.log.Warn("settings that change only at the next start", "settings", later)
	}
}

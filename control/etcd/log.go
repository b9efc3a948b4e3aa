package etcd

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// What etcd says is bounded: of the same message so many in a second, and then one of so many.
const (
	firstLogs, laterLogs = 10, 100
)

// LevelFatal is the level of what etcd ends the process with.
const LevelFatal = slog.LevelError + 4

// newZap makes a logger of etcd's kind that writes to ours.
func newZap(log *slog.Logger) *zap.Logger { return newZapOf(log, nil) }

// newZapOf is newZap for a member, which hears of those of other clusters.
func newZapOf(log *slog.Logger, s *strangers) *zap.Logger {
	c := core{log.With("component", "etcd"), s, nil}
	return zap.New(zapcore.NewSamplerWithOptions(c, time.Second, firstLogs, laterLogs))
}

type core struct {
	log       *slog.Logger
	strangers *strangers // nil: there are none
	fields    []zapcore.Field
}

// level is one lower than etcd has it: what it tells at its start as information is for who looks for a fault in it.
func level(l zapcore.Level) slog.Level {
	switch {
	case l > zapcore.ErrorLevel:
		return LevelFatal
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l >= zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// Enabled implements [zapcore.LevelEnabler].
func (c core) Enabled(l zapcore.Level) bool { return c.log.Enabled(context.Background(), level(l)) }

// With implements [zapcore.Core].
func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{c.log, c.strangers, append(slices.Clip(c.fields), fields...)}
}

// Check implements [zapcore.Core].
func (c core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

// Write implements [zapcore.Core].
func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range c.fields {
		f.AddTo(enc)
	}
	for _, f := range fields {
		f.AddTo(enc)
	}
	at := level(e.Level)
	if text, ok := enc.Fields["error"].(string); ok && at < LevelFatal && closed(text) {
		at = slog.LevelDebug
	}
	if c.strangers != nil && strange(e.Message, enc.Fields) {
		if what, first := c.strangers.hear(enc.Fields); first {
			c.log.Warn(what)
		}
		at = slog.LevelDebug
	}
	attrs := make([]slog.Attr, 0, len(enc.Fields))
	for k, v := range enc.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	c.log.LogAttrs(context.Background(), at, e.Message, attrs...)
	return nil
}

// closed says of an error that its listener was closed, which nobody does but the member itself as it ends: etcd tells
// of each as of a failure to begin.
func closed(text string) bool {
	for _, by := range []string{"mux: server closed", http.ErrServerClosed.Error(), net.ErrClosed.Error()} {
		if strings.HasSuffix(text, by) {
			return true
		}
	}
	return false
}

// Sync implements [zapcore.Core].
func (core) Sync() error { return nil }

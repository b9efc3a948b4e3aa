package apiserver

import "log/slog"

// maxTold bounds how much is remembered of what was told once.
const maxTold = 10_000

// once says what would be the same the next time one time only.
type once struct {
	log  *slog.Logger
	told map[string]bool
}

func (o *once) warn(what, message string, args ...any) {
	if o.told[what] {
		return
	}
	if len(o.told) >= maxTold {
		clear(o.told)
	}
	o.told[what] = true
	o.log.Warn(message, args...)
}

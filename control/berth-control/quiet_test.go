package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestQuiet has the same said a thousand times and other things once: all of those are told, and the beginning of that.
func TestQuiet(t *testing.T) {
	var out bytes.Buffer
	q := newQuiet(slog.NewTextHandler(&out, nil))
	log, named := slog.New(q), slog.New(q.WithAttrs([]slog.Attr{slog.String("of", "x")}))
	for i := range laterSame {
		log.Error("watch chan error: no leader")
		if i < 100 {
			named.Error("Unhandled Error", "error", i)
			log.Info("work is done")
		}
	}
	text := out.String()
	if n := strings.Count(text, "no leader"); n != firstSame+1 || strings.Count(text, "times=1000") != 1 {
		t.Errorf("the same is told %d times:\n%s", n, text)
	}
	if n := strings.Count(text, "Unhandled Error"); n != 100 {
		t.Errorf("of a hundred errors %d are told", n)
	}
	if strings.Contains(text, "work is done") {
		t.Error("work is told of")
	}
}

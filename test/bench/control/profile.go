package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// profileLimit bounds how long one is taken for; it ends with what it is of.
const profileLimit = 10 * time.Minute

// profile has the control plane say where its time goes until the end is called, and then what it holds.
func (p *plane) profile(ctx context.Context, name string) (end func() error) {
	if p.profiles == "" {
		return func() error { return nil }
	}
	took := make(chan error, 1)
	ctx, cancel := context.WithTimeout(ctx, profileLimit)
	go func() { took <- p.ask(ctx, "profile", name) }()
	return func() error {
		defer cancel()
		return errors.Join(<-took, p.holds(ctx, name))
	}
}

// holds has the control plane say what lives in its heap, and what its goroutines do.
func (p *plane) holds(ctx context.Context, name string) error {
	if p.profiles == "" {
		return nil
	}
	return errors.Join(p.ask(ctx, "heap", name), p.ask(ctx, "goroutine", name))
}

// For how long the processors' time is sampled, in seconds: of what goes on, and of nothing, of which there is little.
const profiledBusy, profiledIdle = "8", "40"

// ask writes what the server says of itself to a file.
func (p *plane) ask(ctx context.Context, kind, name string) error {
	request := p.client.Discovery().RESTClient().Get().AbsPath("/debug/pprof/" + kind)
	if kind == "profile" {
		seconds := profiledBusy
		if name == "idle" {
			seconds = profiledIdle
		}
		request = request.Param("seconds", seconds)
	}
	text, err := request.DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("profile %s: %w", name, err)
	}
	return os.WriteFile(filepath.Join(p.profiles, name+"."+kind), text, 0o644)
}

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"time"
)

// helperPatience is how long the helper may take to say its version, which is all that it then does.
const helperPatience = 10 * time.Second

// tellHelper warns when the helper is of another build than this program: the two are made and installed together, and
// nobody has tried others with each other. Keepers that an older helper started are another matter: with them every
// version speaks.
func tellHelper(ctx context.Context, path, version string, log *slog.Logger) {
	has, err := helperVersion(ctx, path)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		log.Warn("helper does not tell its version, as one of an older build does not: install berth and berth-helper together", "helper", path, "berth", version, "error", err)
	case has != version:
		log.Warn("helper is of another version: install berth and berth-helper together", "helper", path, "has", has, "berth", version)
	}
}

func helperVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, helperPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "version")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	name, has, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
	if !ok || name != "berth-helper" {
		return "", fmt.Errorf("ask %s for its version: it says %.80q", path, out)
	}
	return has, nil
}

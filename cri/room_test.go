package cri

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/disk"
)

// TestRoomIsBounded pulls an image that never has room, and has room made as often as one asks: that is all other
// images.
func TestRoomIsBounded(t *testing.T) {
	s := &Server{core: &core{images: &imageService{room: newRoom(), log: slog.New(slog.DiscardHandler)}}}
	made, pulls := 0, 0
	s.Local().AskForRoom(func(context.Context, time.Time) (bool, error) { made++; return made < 100, nil })
	err := s.core.images.withRoom(t.Context(), func() error { pulls++; return fmt.Errorf("unpack: %w", unix.ENOSPC) })
	if err == nil || made != disk.Tries-1 || pulls != disk.Tries {
		t.Errorf("room was made %d times for %d pulls: %v", made, pulls, err)
	}
}

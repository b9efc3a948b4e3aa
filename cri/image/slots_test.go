package image

import (
	"context"
	"errors"
	"testing"
)

func TestSlotsLimitEachRegistryAndAll(t *testing.T) {
	s := newSlots(3, 2)
	full, cancel := context.WithCancelCause(t.Context())
	errFull := errors.New("full")
	cancel(errFull)
	take := func(registry string) func() {
		t.Helper()
		release, err := s.take(t.Context(), registry)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	refused := func(registry string) {
		t.Helper()
		// With a context that has ended a free place may be taken or not; one that is not free cannot.
		if release, err := s.take(full, registry); !errors.Is(err, errFull) {
			if err == nil {
				release()
			}
			t.Fatalf("%s: got %v, want no place", registry, err)
		}
	}
	a1, a2 := take("a"), take("a")
	refused("a") // two of one registry
	b1 := take("b")
	refused("b") // three of all
	a1()
	b2 := take("b")
	refused("a") // a has a place, all have not
	for _, release := range []func(){a2, b1, b2} {
		release()
	}
	if len(s.all) != 0 {
		t.Errorf("%d places are left", len(s.all))
	}
}

package cni

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestWhole: a list that changed while it was read is none.
func TestWhole(t *testing.T) {
	for _, tt := range []struct {
		name        string
		interrupted int   // reads
		err         error // then
		reads       int
		want        error
	}{
		{"at once", 0, nil, 1, nil},
		{"after two that lack something", 2, nil, 3, nil},
		{"another error", 1, unix.EPERM, 2, unix.EPERM},
		{"never", 1 << 20, nil, dumpTries, netlink.ErrDumpInterrupted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reads := 0
			all, err := whole(func() ([]int, error) {
				reads++
				if reads <= tt.interrupted {
					return []int{1}, netlink.ErrDumpInterrupted
				}
				return []int{1, 2}, tt.err
			})
			if reads != tt.reads || !errors.Is(err, tt.want) {
				t.Errorf("%d reads, %v", reads, err)
			}
			if want := []int{1, 2}; err == nil && !slices.Equal(all, want) || err != nil && all != nil {
				t.Errorf("it is %v, %v", all, err)
			}
		})
	}
}

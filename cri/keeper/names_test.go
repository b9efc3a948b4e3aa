package keeper

import "testing"

func TestCapMask(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  uint64
	}{
		{nil, 0},
		{[]string{"CAP_CHOWN", "cap_sys_ptrace", "CHECKPOINT_RESTORE"}, 1<<0 | 1<<19 | 1<<40}, // linux/capability.h
	} {
		if m, err := capMask(c.names); m != c.want || err != nil {
			t.Errorf("%q is %#x, %v", c.names, m, err)
		}
	}
	for _, name := range []string{"", "CAP_", "CAP_NOTHING", "CAP_CAP_CHOWN", "63", "unknown"} {
		if m, err := capMask([]string{name}); err == nil {
			t.Errorf("%q is %#x", name, m)
		}
	}
}

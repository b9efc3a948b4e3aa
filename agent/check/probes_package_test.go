package check

import (
	"errors"
	"slices"
	"testing"
)

func TestAltered(t *testing.T) {
	for said, want := range map[string][]string{
		"": nil, "missing     /usr/share/man/man1/berth.1\n": nil,
		"??5?????? c /etc/berth/x\n??5??????   /usr/bin/berth\n??5??????   /lib/berth\nmissing   /a (Permission denied)\n": {
			"/etc/berth/x", "/lib/berth", "/usr/bin/berth",
		},
		".......T.    /usr/bin/a\nS.5....T.    /usr/bin/berth\nS.5....T.  d /usr/share/doc/b\nmissing    /c\n": {"/usr/bin/berth", "/usr/share/doc/b"},
		"package berth is not installed\nxx5\n": nil,
	} {
		if got := altered(said); !slices.Equal(got, want) {
			t.Errorf("%q: %q, not %q", said, got, want)
		}
	}
}

func TestProbeUpgrade(t *testing.T) {
	for _, c := range []struct {
		upgrade Upgrade
		want    answer
	}{
		{nil, answer{OK, "not looked for"}},
		{func() (string, error) { return "", nil }, answer{OK, "none was cut off"}},
		{func() (string, error) { return "from 1 to 2", nil }, answer{Limited, "from 1 to 2"}},
		{func() (string, error) { return "", errors.New("unreadable") }, answer{Limited, "unreadable"}},
	} {
		if got := probeUpgrade(t.Context(), &env{upgrade: c.upgrade}); got != c.want {
			t.Errorf("%v, not %v", got, c.want)
		}
	}
}

package keeper_test

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestRunTellsHowAContainerEnds(t *testing.T) {
	p := newPod(t)
	for _, tc := range []struct {
		script       string
		code, signal int
	}{
		{"exit 0", 0, 0},
		{"exit 7", 7, 0},
		{"kill -TERM $$; sleep 5", 143, 15},
		{"kill -KILL $$; sleep 5", 137, 9},
	} {
		c := p.container(p.spec("c", "/bin/sh", "-c", "echo 'sh -c \""+tc.script+"\"' >/tmp/x; /bin/sh -c '"+tc.script+"'; exit $?"))
		if tc.signal == 0 {
			c = p.container(p.spec("c", "/bin/sh", "-c", tc.script))
		}
		if _, err := p.Run(t.Context(), c); err != nil {
			t.Fatalf("%s: %v", tc.script, err)
		}
		if e := p.exit(c.ID); e.Code != tc.code {
			t.Errorf("%s: ended with %+v", tc.script, e)
		}
	}
}

func TestSignalEndsAContainer(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	if err := p.Signal(t.Context(), id, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := p.exit(id)
	if e.Code != 137 || e.Signal != 9 || e.Pid != pid || e.StartedAt.After(e.FinishedAt) {
		t.Errorf("ended with %+v", e)
	}
}

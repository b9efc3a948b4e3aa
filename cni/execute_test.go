package cni

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// begun says whether the plugin has come so far as to say who it is.
func begun(path string) bool {
	pid, err := os.ReadFile(path + ".pid")
	return err == nil && len(pid) > 0
}

// TestHostilePlugins: what an executed plugin says, and how long it takes, have bounds.
func TestHostilePlugins(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"endless answer", "yes", "more than 1048576 bytes"},
		{"endless answer of a child", "yes & wait", "more than 1048576 bytes"},
		{"endless complaint", "yes complaint >&2", "no answer within"},
		{"long complaint", "head -c 50000000 /dev/zero | tr '\\0' x >&2; exit 3", "exit status 3: \"xxx"},
		{"no end", "sleep 1000 & wait", "no answer within"},
		{"endless error", "yes; exit 1", "more than"},
		{"no error of CNI", "echo what; exit 4", `exit status 4: "what\n"`},
		{"error of CNI", `echo '{"cniVersion": "1.0.0", "code": 11, "msg": "later"}'; exit 1`, "later"},
		{"left behind", "sleep 1000 & echo '{}'", ""},
		{"complaint beside an answer", "echo oh >&2; echo '{}'", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "plugin")
			must(t, os.WriteFile(path, []byte("#!/bin/sh\necho $$ > "+path+".pid\n"+c.script+"\n"), 0o755))
			e := newExecutor(slog.New(slog.DiscardHandler))
			e.timeout = time.Minute
			late := strings.HasPrefix(c.want, "no answer")
			if late {
				e.timeout = time.Second
			}
			out, err := e.ExecPlugin(t.Context(), path, nil, nil)
			for late && !begun(path) { // on a machine that has other work its shell may need longer for that
				e.timeout *= 2
				out, err = e.ExecPlugin(t.Context(), path, nil, nil)
			}
			switch {
			case c.want == "" && (err != nil || string(out) != "{}\n"):
				t.Errorf("got %q, %v", out, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
				len(err.Error()) > 2*maxComplaint):
				t.Errorf("got %.200v, want %q", err, c.want)
			}
			var said *types.Error
			if got := errors.As(err, &said); got != (c.name == "error of CNI") || got && said.Code != 11 {
				t.Errorf("an error of CNI: %v", said)
			}
			pid, err := os.ReadFile(path + ".pid")
			must(t, err)
			group, err := strconv.Atoi(strings.TrimSpace(string(pid)))
			must(t, err)
			if c.name == "left behind" {
				must(t, unix.Kill(-group, unix.SIGKILL)) // it was not ended, it was left
			}
			eventually(t, "something of the plugin's is left",
				func() bool { return errors.Is(unix.Kill(-group, 0), unix.ESRCH) })
		})
	}
}

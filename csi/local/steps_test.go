package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/internal/mount"
)

// What the test tells the process that is killed.
const (
	stepDir  = "CSI_LOCAL_STEP_DIR"
	stepKind = "CSI_LOCAL_STEP_KIND"
	stepAct  = "CSI_LOCAL_STEP_ACT"
	stepLeft = "CSI_LOCAL_STEP_LEFT"
)

// TestStep is the driver that is killed at a step.
func TestStep(t *testing.T) {
	dir, act := os.Getenv(stepDir), os.Getenv(stepAct)
	if dir == "" {
		t.Skip("TestKilledAtEachStep runs it")
	}
	left, err := strconv.Atoi(os.Getenv(stepLeft))
	must(t, err)
	begun := act == ""
	c := Config{DataDir: filepath.Join(dir, "data"), NodeID: "here", Overcommit: 1, Log: slog.New(slog.DiscardHandler)}
	c.step = func(name string) {
		if !begun {
			return
		}
		if left == 0 {
			fmt.Println("killed before:", name)
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		left--
	}
	d, err := Open(context.Background(), c)
	must(t, err)
	if act == "" {
		return
	}
	begun = true
	must(t, life{d, os.Getenv(stepKind), dir}.do(context.Background(), act))
}

// killAt runs a driver that is killed at a step of an act, or, with no act, of its start; false: it has come to its end
// before.
func (r *rig) killAt(kind, act string, step int) bool {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), os.Args[0], "-test.run=^TestStep$")
	cmd.Env = append(os.Environ(), stepDir+"="+r.dir, stepKind+"="+kind, stepAct+"="+act, stepLeft+"="+strconv.Itoa(step))
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() >= 0) {
		r.t.Fatalf("%s: %v: %s", act, err, out)
	}
	r.t.Logf("%s", strings.TrimSpace(string(out)))
	return err != nil
}

// A driver that is killed at any step goes on there: who asks again has what he asked for, and who gives up instead
// leaves nothing. The driver that comes next may be killed at a step of its start, too.
func TestKilledAtEachStep(t *testing.T) {
	stride := 1
	if testing.Short() {
		stride = 4
	}
	for _, kind := range []string{typeDirectory, typeLoop, "block"} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			for _, act := range acts {
				for step, more := 0, true; more && !t.Failed(); step += stride {
					if act.undo != "" {
						r.killedThen(life{kind: kind, dir: r.dir}, act.name, step, act.undo)
					}
					more = r.killedThen(life{kind: kind, dir: r.dir}, act.name, step, act.name)
					if act.undo != "" && more {
						must(t, life{r.driver, kind, r.dir}.do(t.Context(), act.undo))
					}
				}
			}
			for _, dir := range []string{"images", "volumes", "inline", "records/volumes", "records/snapshots", "records/groups", "quarantine"} {
				left, err := os.ReadDir(filepath.Join(r.dir, "data", dir))
				if err != nil || len(left) > 0 {
					t.Errorf("%s has %v, %v", dir, left, err)
				}
			}
		})
	}
}

// killedThen has a driver be killed at a step of an act, and the next one do another act; false: the first had come to
// its end.
func (r *rig) killedThen(l life, act string, step int, then string) bool {
	r.t.Helper()
	r.stop()
	more := r.killAt(l.kind, act, step)
	if then != act {
		r.killAt(l.kind, "", step%3)
	}
	r.start()
	l.d = r.driver
	if err := l.do(r.t.Context(), then); err != nil {
		r.t.Errorf("killed at step %d of %s, then %s: %v", step, act, then, err)
	} else if err := l.check(then); err != nil {
		r.t.Errorf("killed at step %d of %s, then %s: %v", step, act, then, err)
	}
	return more
}

// What follows the mount of a new file system is done by who stages it again, where it was not.
func TestStagedInPart(t *testing.T) {
	r, c := newRig(t), mounted("ext4")
	c.GetMount().VolumeMountGroup = lifeGroup
	id := r.create(request("n", typeLoop, c, 16<<20))
	r.driver.records.step = func(name string) {
		if name == "give group" {
			panic("as if it were killed")
		}
	}
	wantCode(t, r.stage(id, c), codes.Internal, "killed")
	r.driver.records.step = nil
	must(t, r.stage(id, c))
	var st unix.Stat_t
	must(t, unix.Stat(r.staging(id), &st))
	if strconv.Itoa(int(st.Gid)) != lifeGroup {
		t.Errorf("it is of group %d", st.Gid)
	}
	must(t, r.unstage(id))
	must(t, r.remove(id))
}

// A directory that an earlier version has mounted where it was staged is not mounted there any more when it is
// unstaged, and its users get it meanwhile.
func TestStagedByMount(t *testing.T) {
	r, c := newRig(t), mounted("")
	id := r.create(request("n", typeDirectory, c, 1<<20))
	must(t, r.stage(id, c))
	must(t, os.MkdirAll(r.staging(id), 0o750))
	must(t, mount.Bind(r.driver.backends.dirs.Path(id), r.staging(id), nil))
	r.restart()
	must(t, r.stage(id, c))
	must(t, r.publish(id, "a", c, false))
	write(t, filepath.Join(r.target("a"), "f"), "data")
	if b, err := os.ReadFile(filepath.Join(r.staging(id), "f")); string(b) != "data" {
		t.Errorf("it has %q, %v", b, err)
	}
	must(t, r.unpublish(id, "a"))
	must(t, r.unstage(id))
	if is, err := mount.Is(r.staging(id)); err != nil || is {
		t.Errorf("mounted %t, %v", is, err)
	}
	must(t, r.remove(id))
}

// The options that a directory is staged with are those of all its users.
func TestStagedReadOnly(t *testing.T) {
	r, c := newRig(t), mounted("")
	c.GetMount().MountFlags = []string{"ro", "noexec"}
	id := r.create(request("n", typeDirectory, c, 1<<20))
	must(t, r.stage(id, c))
	plain := mounted("")
	must(t, r.publish(id, "a", plain, false))
	var st unix.Statfs_t
	must(t, unix.Statfs(r.target("a"), &st))
	if st.Flags&unix.ST_RDONLY == 0 || st.Flags&unix.ST_NOEXEC == 0 {
		t.Errorf("it is mounted with the flags %x", st.Flags)
	}
	must(t, r.unpublish(id, "a"))
	must(t, r.unstage(id))
	must(t, r.remove(id))
}

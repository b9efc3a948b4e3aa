package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Exit tells how a process ended.
type Exit struct {
	ContainerID string
	Pid         int
	Code        int // 128 plus the signal when one ended it
	Signal      int
	OOMKilled   bool
	StartedAt   time.Time
	FinishedAt  time.Time
}

// State is what a keeper recorded of a container before and while it started.
type State struct {
	ContainerID string
	// Phase is "launching", "running" (since it was started, also when it has
	// ended: then there is an Exit) or "failed".
	Phase     string
	Pid       int
	StartedAt time.Time
	Error     string // libcontainer's, when failed

	start uint64 // the process's start time, in clock ticks
}

// Exits reads every exit record, also while the keeper is dead.
func (k *Keeper) Exits() ([]Exit, error) { return ReadExits(k.peer.dir) }

// ReadExits reads every exit record of a keeper's directory. One that is damaged
// does not keep the others from being read: it is part of the error, and that its
// container has ended is told all the same, with a code of 255, where the
// container's other record does not say that it still runs.
func ReadExits(dir string) ([]Exit, error) {
	var exits []Exit
	err := readRecords(filepath.Join(dir, "exit"), func(id, text string) error {
		e, err := parseExit(id, text)
		if err == nil {
			exits = append(exits, e)
		} else if lost, ok := lostExit(dir, id); ok {
			exits = append(exits, lost)
		}
		return err
	})
	if err != nil {
		return exits, fmt.Errorf("read exit records: %w", err)
	}
	return exits, nil
}

// ReadStates reads the record of every container of a keeper's directory.
func ReadStates(dir string) ([]State, error) {
	var states []State
	err := readRecords(filepath.Join(dir, "c"), func(id, text string) error {
		s, err := parseState(id, text)
		if err == nil {
			states = append(states, s)
		}
		return err
	})
	if err != nil {
		return states, fmt.Errorf("read container records: %w", err)
	}
	return states, nil
}

// Forget drops the records of a container whose keeper is dead. It is
// idempotent.
func Forget(dir, containerID string) error {
	if err := checkID(containerID); err != nil {
		return err
	}
	for _, sub := range []string{"exit", "c"} {
		if err := os.Remove(filepath.Join(dir, sub, containerID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func readRecords(dir string, fn func(id, text string) error) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		id := e.Name()
		if checkID(id) != nil { // a record being written begins with a dot
			continue
		}
		text, err := readRecord(filepath.Join(dir, id))
		if errors.Is(err, fs.ErrNotExist) { // forgotten meanwhile
			continue
		}
		if err == nil {
			err = fn(id, text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("record of %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// maxRecord is more than any record has: the longest holds what libcontainer said of a failed start.
const maxRecord = 64 << 10

func readRecord(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	return string(b), err
}

// lostExit is what is left to tell of a container whose exit record is damaged: that there is one. It is false where
// the container's process still is there.
func lostExit(dir, id string) (Exit, bool) {
	e := Exit{ContainerID: id, Code: lostCode}
	info, err := os.Stat(filepath.Join(dir, "exit", id))
	if err != nil {
		return e, false
	}
	e.StartedAt, e.FinishedAt = info.ModTime(), info.ModTime()
	s, ident, err := stateOf(dir, id)
	if err != nil {
		return e, true
	}
	e.Pid, e.StartedAt = s.Pid, s.StartedAt
	alive, err := ident.alive()
	return e, err == nil && !alive
}

// lostCode is the code of an exit of which no more is known.
const lostCode = 255

// stateOf reads the record of one container, and whose process it names.
func stateOf(dir, id string) (State, identity, error) {
	text, err := readRecord(filepath.Join(dir, "c", id))
	if err != nil {
		return State{}, identity{}, err
	}
	s, err := parseState(id, text)
	if err == nil && (s.Pid <= 1 || s.start == 0) {
		err = errors.New("it names no process")
	}
	keeper, _ := readIdentity(dir) // of the same boot; where it says nothing, the start time has to do
	return s, identity{pid: s.Pid, start: s.start, boot: keeper.boot}, err
}

// parseExit reads "1 <pid> <wait status> <oom> <started> <finished>", times in
// nanoseconds since the epoch. The first field is the version of the format.
func parseExit(id, text string) (Exit, error) {
	e := Exit{ContainerID: id}
	n, err := numbers(text, 6)
	if err != nil {
		return e, err
	}
	e.Pid = int(n[1])
	e.setStatus(uint32(n[2]))
	e.OOMKilled = n[3] != 0
	e.StartedAt = time.Unix(0, n[4])
	e.FinishedAt = time.Unix(0, n[5])
	return e, nil
}

// parseState reads "1 <phase> <pid> <start time> <started>", and after a line
// feed the error of a failed start.
func parseState(id, text string) (State, error) {
	s := State{ContainerID: id}
	line, rest, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 2 {
		return s, errors.New("too few fields")
	}
	s.Phase = f[1]
	n, err := numbers(f[0]+" "+strings.Join(f[2:], " "), 4)
	if err != nil {
		return s, err
	}
	s.Pid, s.start = int(n[1]), uint64(n[2])
	if n[3] != 0 {
		s.StartedAt = time.Unix(0, n[3])
	}
	s.Error = strings.TrimSpace(rest)
	return s, nil
}

// numbers reads a version and the numbers after it. A later version may add
// fields at the end.
func numbers(text string, want int) ([]int64, error) {
	f := strings.Fields(text)
	if len(f) < want {
		return nil, fmt.Errorf("want %d fields, have %d", want, len(f))
	}
	n := make([]int64, want)
	for i := range n {
		v, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return nil, err
		}
		n[i] = v
	}
	if n[0] < 1 {
		return nil, fmt.Errorf("version %d is not known", n[0])
	}
	return n, nil
}

// setStatus splits a status of wait(2).
func (e *Exit) setStatus(status uint32) {
	ws := unix.WaitStatus(status)
	if ws.Signaled() {
		e.Signal = int(ws.Signal())
		e.Code = 128 + e.Signal
		return
	}
	e.Code = int(status>>8) & 0xff
}

func exitOf(m message) Exit {
	e := Exit{
		ContainerID: m.text(tagID),
		Pid:         int(m.u32(tagPid)),
		OOMKilled:   m.u32(tagOOM) != 0,
		StartedAt:   time.Unix(0, int64(m.u64(tagStarted))),
		FinishedAt:  time.Unix(0, int64(m.u64(tagFinished))),
	}
	e.setStatus(m.u32(tagStatus))
	return e
}

// Watch calls fn for every exit there is on record, and then for each that
// happens, each once, until the context ends or the keeper is gone (ErrGone).
// After any other error the keeper may live, and can be watched again.
// It subscribes before it reads the records, so none falls between.
func (k *Keeper) Watch(ctx context.Context, fn func(Exit)) error {
	seen := map[string]int{}
	tell := func(e Exit) {
		if pid, ok := seen[e.ContainerID]; ok && pid == e.Pid {
			return
		}
		seen[e.ContainerID] = e.Pid
		fn(e)
	}
	err := k.watch(ctx, tell)
	if errors.Is(err, ErrGone) {
		// It may have written a record and died before it told.
		exits, rerr := k.Exits()
		for _, e := range exits {
			tell(e)
		}
		err = errors.Join(err, rerr)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("watch keeper %s: %w", k.id, err)
}

func (k *Keeper) watch(ctx context.Context, tell func(Exit)) error {
	c, _, files, err := k.peer.request(ctx, opWatch, nil)
	if err != nil {
		return err
	}
	closeAll(files)
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	exits, err := k.Exits()
	for _, e := range exits {
		tell(e)
	}
	if err != nil && !damaged(err) {
		return err
	}
	buf := make([]byte, 1024)
	for {
		m, files, err := receive(c, buf)
		if err = gone(err); errors.Is(err, ErrGone) {
			return k.peer.ended()
		}
		if err != nil {
			return err
		}
		closeAll(files)
		if m.op == opExit {
			tell(exitOf(m))
		}
	}
}

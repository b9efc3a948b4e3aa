package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
)

// A member whose disk is full ends in the middle of a write, and again at each start: its database takes pages to give
// some back. So writes are refused while there is some room, and some room is kept for a start.

const (
	// LeastFree is how much of the disk is left when writes are refused, in bytes: a segment of the log, and as much
	// for what is under way, for deletions and for what makes the database smaller.
	LeastFree = 128 << 20
	// ballastSize is what a file holds for a start on a disk that has been filled at once.
	ballastSize = 32 << 20
	ballastName = "ballast"
	// lookEvery is how often the disk is looked at: the kernel tells nobody that it fills.
	lookEvery = time.Second
	// alarmTimeout bounds how long the members may take to agree on an alarm.
	alarmTimeout = 10 * time.Second
)

// Lighten gives the ballast of a member's directory up where a start needs the room, which writes files from its
// beginning on: it comes before all of them, and before [Start]. Without a directory there is none.
func Lighten(dir string) error {
	free, err := freeIn(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for room for etcd: %w", err)
	}
	if free >= LeastFree {
		return nil
	}
	if err := os.Remove(filepath.Join(dir, ballastName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make room for etcd: %w", err)
	}
	return nil
}

// load takes the ballast in again. Where a file system cannot give room before it is used there is none.
func load(dir string) error {
	path := filepath.Join(dir, ballastName)
	if st, err := os.Stat(path); err == nil && st.Size() == ballastSize {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_NONBLOCK, 0o600) // a pipe would wait for who reads it
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), 0, 0, ballastSize)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	if err != nil {
		return err
	}
	return atomicfile.SyncDir(dir)
}

// watchSpace looks at the member's disk until it stops, and raises etcd's alarm for want of room: all members then
// refuse what makes the store larger, until somebody has made room and disarms it.
func (m *Member) watchSpace(dir string, log *slog.Logger) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	w := &space{m, dir, log, false, ""}
	for {
		w.look()
		select {
		case <-m.etcd.Server.StopNotify():
			return
		case <-tick.C:
		}
	}
}

// space is what is known of a member's disk.
type space struct {
	member *Member
	dir    string
	log    *slog.Logger
	low    bool
	told   string
}

func (w *space) look() {
	free, err := freeIn(w.dir)
	if err == nil && free >= LeastFree+ballastSize {
		err = load(w.dir)
	}
	if err == nil && free < LeastFree {
		err = w.alarm(free)
	} else if w.low && w.alarmed() == nil && free >= LeastFree {
		w.low = false
		w.log.Info("etcd takes writes again", "free", free)
	}
	var text string
	if err != nil {
		text = err.Error()
	}
	if text != w.told && text != "" {
		w.log.Error("the disk of etcd is not looked after", "dir", w.dir, "error", text)
	}
	w.told = text
}

// alarmed is the alarm of this member.
func (w *space) alarmed() *etcdserverpb.AlarmMember {
	for _, a := range w.member.etcd.Server.Alarms() {
		if a.Alarm == etcdserverpb.AlarmType_NOSPACE && a.MemberID == uint64(w.member.etcd.Server.MemberID()) {
			return a
		}
	}
	return nil
}

func (w *space) alarm(free int64) error {
	if !w.low {
		w.log.Error("the disk of etcd is full: nothing is written any more, until room is made and berth-control etcd disarm is run",
			"dir", w.dir, "free", free, "wanted", LeastFree)
		w.low = true
	}
	if w.alarmed() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), alarmTimeout)
	defer cancel()
	server := w.member.etcd.Server
	_, err := server.Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE, MemberID: uint64(server.MemberID()),
	})
	if err != nil {
		return fmt.Errorf("raise alarm: %w", err)
	}
	return nil
}

// Disarm has members take writes again that have raised the alarm for want of room, and returns their IDs. dir is the
// store of one of them, whose disk is looked at first: the others look at theirs by themselves, and raise it again.
func Disarm(ctx context.Context, client *clientv3.Client, dir string) ([]uint64, error) {
	free, err := freeIn(dir)
	if err != nil {
		return nil, fmt.Errorf("look for room for etcd: %w", err)
	}
	if free < LeastFree {
		return nil, fmt.Errorf("disarm: %d MB are free in %s, and %d MB are wanted: make room first", free>>20, dir, LeastFree>>20)
	}
	list, err := client.AlarmList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list alarms: %w", err)
	}
	var done []uint64
	for _, a := range list.Alarms {
		if a.Alarm != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		if _, err := client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: a.MemberID, Alarm: a.Alarm}); err != nil {
			return done, fmt.Errorf("disarm alarm of member %x: %w", a.MemberID, err)
		}
		done = append(done, a.MemberID)
	}
	return done, nil
}

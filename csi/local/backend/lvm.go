package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/berth-node/berth/internal/command"
)

// lvmTime bounds a call of LVM.
const lvmTime = 2 * time.Minute

// lvmName is what names of groups and volumes are made of, at most maxLVMName of it (lvm(8)).
var lvmName = regexp.MustCompile(`^[A-Za-z0-9_+.][-A-Za-z0-9_+.]*$`)

// maxLVMName is not counted by the expression: that would be compiled from so many copies, by every command.
const maxLVMName = 127

// LVM is thin volumes in a pool of a volume group.
type LVM struct{ group, pool string }

// NewLVM uses a thin pool that is there.
func NewLVM(group, pool string) (*LVM, error) {
	for _, name := range []string{group, pool} {
		if len(name) > maxLVMName || !lvmName.MatchString(name) {
			return nil, fmt.Errorf("%q is not the name of a volume group or of a thin pool", name)
		}
	}
	return &LVM{group, pool}, nil
}

// change calls what changes something. It is not killed in the middle: a volume that is suspended then stays so, and
// with it whoever writes to it.
func change(ctx context.Context, name string, args ...string) error {
	_, err := command.Call{Name: name, Args: args, Deadline: lvmTime, Whole: true}.Run(ctx)
	if err != nil && strings.Contains(err.Error(), checker) {
		if without := command.Find(checker); without != nil {
			err = fmt.Errorf("%w, and LVM makes no thin pool active without it: %w", without, err)
		}
	}
	return err
}

// checker is what LVM has look at a thin pool before it makes it active. Where it is not, LVM says that the pool has to
// be repaired by hand.
const checker = "thin_check"

func (b *LVM) name(id string) string { return b.group + "/" + id }

// path is the device of a volume while it is active.
func (b *LVM) path(id string) string { return filepath.Join("/dev", b.group, id) }

// report is one field that LVM tells of a volume; false when there is no such volume.
func (b *LVM) report(ctx context.Context, id, field string) (string, bool, error) {
	out, err := b.listed(ctx, field, "lv_name", id)
	return out, err == nil && out != "", err
}

// listed is a field of all volumes of the group that have something, a line each.
func (b *LVM) listed(ctx context.Context, field, has, value string) (string, error) {
	out, err := command.Call{
		Name: "lvs", Deadline: lvmTime,
		Args: []string{"--noheadings", "--nosuffix", "--units=b", "-o", field, "-S", fmt.Sprintf("vg_name=%q && %s=%q", b.group, has, value)},
	}.Run(ctx)
	return strings.TrimSpace(out.Out), err
}

// IDs are what the volumes in the pool are called.
func (b *LVM) IDs(ctx context.Context) ([]string, error) {
	out, err := b.listed(ctx, "lv_name", "pool_lv", b.pool)
	return strings.Fields(out), err
}

// Make makes a volume of a size in bytes that takes nothing yet.
func (b *LVM) Make(ctx context.Context, id string, size int64) error {
	if err := b.Remove(ctx, id); err != nil {
		return err
	}
	return change(ctx, "lvcreate", "--yes", "--wipesignatures=n", "--virtualsize="+strconv.FormatInt(size, 10)+"b", "--thinpool="+b.pool, "--name="+id, b.group)
}

// Copy makes a snapshot of a volume, which shares what neither has changed. What is mounted of it is frozen meanwhile,
// by the device mapper.
func (b *LVM) Copy(ctx context.Context, id, from string) (bool, error) {
	if err := b.Remove(ctx, id); err != nil {
		return false, err
	}
	err := change(ctx, "lvcreate", "--yes", "--snapshot", "--setactivationskip=n", "--name="+id, b.name(from))
	return true, err
}

// Remove removes a volume; it is no error when there is none.
func (b *LVM) Remove(ctx context.Context, id string) error {
	if _, there, err := b.report(ctx, id, "lv_name"); err != nil || !there {
		return err
	}
	return change(ctx, "lvremove", "--yes", b.name(id))
}

// Grow has a volume be at least of a size in bytes.
func (b *LVM) Grow(ctx context.Context, id string, size int64) error {
	has, err := b.size(ctx, id)
	if err != nil || has >= size {
		return err
	}
	return change(ctx, "lvextend", "--size="+strconv.FormatInt(size, 10)+"b", b.name(id))
}

func (b *LVM) size(ctx context.Context, id string) (int64, error) {
	text, there, err := b.report(ctx, id, "lv_size")
	if err == nil && !there {
		err = fmt.Errorf("there is no logical volume %s: %w", b.name(id), os.ErrNotExist)
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// Attach makes a volume active.
func (b *LVM) Attach(ctx context.Context, id string, _ bool) (string, func(), error) {
	err := change(ctx, "lvchange", "--yes", "--activate=y", "--ignoreactivationskip", b.name(id))
	return b.path(id), func() {}, err
}

// Detach makes a volume inactive; it is no error when it is, or when there is none.
func (b *LVM) Detach(ctx context.Context, id string) error {
	if _, there, err := b.report(ctx, id, "lv_name"); err != nil || !there {
		return err
	}
	return change(ctx, "lvchange", "--activate=n", b.name(id))
}

// Device is the device of an active volume; "" when it is not.
func (b *LVM) Device(_ context.Context, id string) (string, error) {
	device, err := filepath.EvalSymlinks(b.path(id))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return device, err
}

// Taken is how many bytes volumes take of the pool. LVM is asked once, however many there are: each call of it looks
// through all block devices.
func (b *LVM) Taken(ctx context.Context, ids ...string) map[string]int64 {
	if len(ids) == 0 {
		return nil
	}
	out, err := b.listed(ctx, "lv_name,lv_size,data_percent", "pool_lv", b.pool)
	if err != nil {
		return nil
	}
	told := map[string]int64{}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		if n, ok := percentOf(fields[1], fields[2]); ok {
			told[fields[0]] = n
		}
	}
	return each(ids, func(id string) (int64, bool) {
		n, known := told[id]
		return n, known
	})
}

// percentOf is a part of a size, as LVM tells both.
func percentOf(size, percent string) (int64, bool) {
	bytes, err := strconv.ParseInt(size, 10, 64)
	part, err2 := strconv.ParseFloat(percent, 64)
	if err != nil || err2 != nil || bytes < 0 || !(part >= 0 && part <= 100) {
		return 0, false
	}
	return int64(float64(bytes) * part / 100), true
}

// Free is how many bytes the pool has for more.
func (b *LVM) Free(ctx context.Context) (int64, error) {
	text, there, err := b.report(ctx, b.pool, "lv_size,data_percent")
	fields := strings.Fields(text)
	if err == nil && (!there || len(fields) != 2) {
		err = fmt.Errorf("there is no thin pool %s", b.name(b.pool))
	}
	if err != nil {
		return 0, err
	}
	taken, ok := percentOf(fields[0], fields[1])
	size, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || !ok {
		return 0, fmt.Errorf("the size of thin pool %s is not to be read: %q", b.name(b.pool), text)
	}
	return size - taken, nil
}

// Missing says why a volume is not as its record says; nil when it is.
func (b *LVM) Missing(ctx context.Context, id string, size int64) error {
	has, err := b.size(ctx, id)
	if err == nil && has < size {
		err = fmt.Errorf("the logical volume has %d bytes of %d", has, size)
	}
	return err
}

package container

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// rescoreOne changes a process that still is in the group and has the old value. The directory in /proc stays that of
// one process, also where its number is given to another.
func rescoreOne(dir, group string, before, now int) (bool, error) {
	proc, err := os.OpenRoot(dir)
	if err != nil {
		return false, nil // it has ended
	}
	defer proc.Close()
	groups, err := proc.ReadFile("cgroup")
	if err != nil || !strings.Contains(string(groups), group) {
		return false, nil // it has ended, or moved on
	}
	has, err := proc.ReadFile("oom_score_adj")
	if err != nil || strings.TrimSpace(string(has)) != strconv.Itoa(before) {
		return false, nil // as above
	}
	f, err := proc.OpenFile("oom_score_adj", os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(now))
		err = errors.Join(err, f.Close())
	}
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

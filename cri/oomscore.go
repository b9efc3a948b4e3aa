package cri

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// rescore gives the processes of a container another oom_score_adj. Those that have chosen one for themselves keep it. What is forked
// meanwhile has its parent's, so it is looked again until nobody has the old one.
func (cs *containers) rescore(group string, before, now int) error {
	for range 16 {
		changed := 0
		for _, file := range cs.cgroups.ProcsFiles(group) {
			b, err := os.ReadFile(file)
			if err != nil {
				continue // of a hierarchy that the container has no group in, or it has just ended
			}
			for pid := range strings.FieldsSeq(string(b)) {
				did, err := rescoreOne("/proc/"+pid, group, before, now)
				if err != nil {
					return fmt.Errorf("set oom_score_adj of process %s: %w", pid, err)
				}
				if did {
					changed++
				}
			}
		}
		if changed == 0 {
			return nil
		}
	}
	return nil // it forks faster than one can look; its first processes have it
}

// rescoreOne changes a process that still is in the group and has the old value. The directory in /proc stays that of one process, also
// where its number is given to another.
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

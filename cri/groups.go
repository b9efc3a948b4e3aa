package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
)

// realGroups is the hierarchy of the machine.
type realGroups struct{ *cgroups.Hierarchy }

// Attach puts a process into a group, in every hierarchy. A process or group that is gone is no error.
func (g realGroups) Attach(path string, pid int) error {
	for _, f := range g.ProcsFiles(path) {
		err := write(f, strconv.Itoa(pid))
		if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("attach process %d to group %s: %w", pid, path, err)
		}
	}
	return nil
}

// Warm makes the attachments of the next moments cheap. The kernel holds up every fork and exit of the machine while it moves
// a process between groups, and the first move after a while waits some 6 ms for an RCU grace period to announce that; further
// ones do not. Moving this process to where it is announces it as well, while there is still other work to do.
func (g realGroups) Warm() {
	// Looked up each time: somebody may have moved this process, and it is not to be moved back.
	path, err := g.FromPid(os.Getpid())
	if err != nil {
		return
	}
	if dir := g.MemoryDir(path); dir != "" {
		_ = write(dir+"/cgroup.procs", "0")
	}
}

func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

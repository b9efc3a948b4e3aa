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

// Warm makes the attachments of the next moments cheap, while there is still other work to do. Where it fails they take longer.
func (g realGroups) Warm() { _ = g.Hierarchy.Warm() }

func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// become has root be who the data directory belongs to, for a command that writes to it: the service, which is a user
// without privileges, could not read what root has written there.
func (d data) become() error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(d.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find data directory: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 {
		return nil
	}
	err = syscall.Setgroups(nil)
	if err == nil {
		err = syscall.Setgid(int(st.Gid)) // of all threads
	}
	if err == nil {
		err = syscall.Setuid(int(st.Uid))
	}
	if err != nil {
		return fmt.Errorf("become user %d, whose %s is: %w", st.Uid, d.dir, err)
	}
	return nil
}

package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/record"
)

func rootProbes() []probe {
	return []probe{
		{"room", false, "Pods that run go on, and nothing new can be begun.", probeRoom},
		{"records", false, "Images and pods whose records were lost are found again by what is on the disk and what their keepers have; what containers were given is given again.", probeRecords},
	}
}

// probeRoom makes a file where the node has its data.
func probeRoom(_ context.Context, e *env) answer {
	f, err := os.CreateTemp(e.dir, ".berth-check-")
	if err != nil {
		return missing("%v", err)
	}
	_, err = f.Write(make([]byte, 4096))
	if err := errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name())); err != nil {
		return missing("%v", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(e.dir, &st); err != nil {
		return missing("statfs %s: %v", e.dir, err)
	}
	found := "%d MiB and %d inodes are free on " + filesystem(e.dir)
	free := st.Bavail * uint64(st.Bsize) >> 20
	// By kubelet's thresholds of eviction: images are removed by then.
	if st.Bavail < st.Blocks/10 || st.Files > 0 && st.Ffree < st.Files/20 {
		return limited(found, free, st.Ffree)
	}
	return ok(found, free, st.Ffree)
}

// probeRecords looks for what the runtime and the agent have set aside.
func probeRecords(_ context.Context, e *env) answer {
	entries, err := os.ReadDir(e.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return missing("%v", err)
	}
	var lost []string
	for _, f := range entries {
		if f.Name() != "runtime.db.damaged" && !strings.HasSuffix(f.Name(), record.Aside) {
			continue
		}
		info, err := f.Info()
		if err != nil {
			return missing("%v", err)
		}
		at, file := info.ModTime().UTC().Format(time.RFC3339), filepath.Join(e.dir, f.Name())
		lost = append(lost, fmt.Sprintf("some were lost at %s: %s has the file as it was, and can be removed", at, file))
	}
	if len(lost) == 0 {
		return ok("none were lost")
	}
	return limited("%s", strings.Join(lost, "; "))
}

package check

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func rootProbes() []probe {
	return []probe{
		{"room", false, "Pods that run go on, and nothing new can be begun.", probeRoom},
		{"records", false, "Images and pods whose records were lost are found again by what is on the disk and what their keepers have.", probeRecords},
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

// probeRecords looks for what the runtime has set aside.
func probeRecords(_ context.Context, e *env) answer {
	aside := filepath.Join(e.dir, "runtime.db.damaged")
	info, err := os.Lstat(aside)
	if errors.Is(err, os.ErrNotExist) {
		return ok("none were lost")
	}
	if err != nil {
		return missing("%v", err)
	}
	return limited("some were lost at %s: %s has the file as it was, and can be removed", info.ModTime().UTC().Format(time.RFC3339), aside)
}

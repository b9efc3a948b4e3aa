package pod

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/api/logs"
	"github.com/berth-node/berth/agent/pod/spec"
)

// The API's limits of termination messages: of one container, of all those of a pod together, and of what stands in for it from the
// log.
const (
	maxMessage     = 4096
	maxMessages    = 12 << 10
	maxLogTail     = 2048
	maxLogTailRows = 80
)

// lastWords is the termination message of a container that has exited.
func (w *worker) lastWords(c *container) string {
	n := len(w.pod.Spec.Containers) + len(w.pod.Spec.InitContainers)
	limit := min(maxMessage, maxMessages/max(n, 1))
	path, orLogs := spec.MessagePath(c.GetAnnotations())
	text := ""
	if path != "" {
		file := spec.MessageFile(w.cfg.RootDir, string(w.uid), c.GetMetadata().GetName(), c.GetMetadata().GetAttempt())
		data, err := readTail(file, limit)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			w.log.Warn("termination message cannot be read", "container", c.GetMetadata().GetName(), "error", err)
		}
		text = string(data)
	}
	if text != "" || !orLogs || c.GetExitCode() == 0 || c.GetLogPath() == "" {
		return text
	}
	var buf bytes.Buffer
	// What can be read of the log is better than nothing.
	_ = logs.Read(context.Background(), c.GetLogPath(), logs.Options{Tail: maxLogTailRows}, &buf)
	data := buf.Bytes()
	return string(data[max(0, len(data)-min(limit, maxLogTail)):])
}

// readTail reads the end of a file that a container could write to: it may have put something else in its place.
func readTail(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return nil, err
	}
	at := max(0, fi.Size()-int64(limit))
	return io.ReadAll(io.NewSectionReader(f, at, int64(limit)))
}

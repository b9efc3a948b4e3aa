package pod

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/api/logs"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/internal/excerpt"
)

// The API's limits of termination messages: of one container, of all those of a pod together, and of what stands in for
// it from the log.
const (
	maxMessage     = 4096
	maxMessages    = 12 << 10
	maxLogTail     = 2048
	maxLogTailRows = 80
)

// lastWords is the termination message of a container that has exited.
func (w *worker) lastWords(c *plan.Container) string {
	n := len(w.pod.Spec.Containers) + len(w.pod.Spec.InitContainers)
	limit := min(maxMessage, maxMessages/max(n, 1))
	path, orLogs := spec.MessagePath(c.GetAnnotations())
	text := ""
	if path != "" {
		data, err := readTail(w.messageFile(c), limit)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			w.log.Warn("termination message cannot be read", "container", c.GetMetadata().GetName(), "error", err)
		}
		text = string(data)
	}
	if text != "" || !orLogs || c.GetExitCode() == 0 || c.GetLogPath() == "" {
		return text
	}
	return logTail(c.GetLogPath(), min(limit, maxLogTail))
}

// logTail is the end of a log, in bytes. Its last rows may be as long as all its files.
func logTail(path string, most int) string {
	end := excerpt.Last{Most: most}
	// What can be read of the log is better than nothing.
	_ = logs.Read(context.Background(), path, logs.Options{Tail: maxLogTailRows}, &end)
	return string(end.Bytes())
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

// messages are the files of all messages that were left, with what they say.
func (w *worker) messages() map[string]string {
	out := map[string]string{}
	for _, list := range w.observer.seen.Containers {
		for i := range list {
			c := &list[i]
			if path, _ := spec.MessagePath(c.GetAnnotations()); path != "" && w.observer.said[c.GetId()] != "" {
				out[w.messageFile(c)] = w.observer.said[c.GetId()]
			}
		}
	}
	return out
}

func (w *worker) messageFile(c *plan.Container) string {
	return spec.MessageFile(w.node.cfg.RootDir, string(w.uid), c.GetMetadata().GetName(), c.GetMetadata().GetAttempt())
}

package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/internal/filetree"
)

const dirMode = 0o750

// messageMode lets whoever runs in the container write its last words: it is not known here which user that is.
const messageMode = 0o666

// directory has what is kept of a pod.
func directory(c *Config, pod *corev1.Pod) string {
	return filepath.Join(c.RootDir, "pods", string(pod.UID))
}

// files are what a pod has in its directory beside volumes, and its logs.
type files struct {
	cfg  *Config
	pod  *corev1.Pod
	pool *idPool
	ids  *spec.IDs // nil: the node's
}

func (f *files) makeDirectory(context.Context) error {
	if err := os.MkdirAll(directory(f.cfg, f.pod), dirMode); err != nil {
		return err
	}
	if f.pod.Name != "" { // else nothing more is known of it
		if err := KeepDefinition(f.cfg.RootDir, f.pod); err != nil {
			return err
		}
	}
	if !spec.OwnUsers(f.pod) {
		return nil
	}
	return f.takeIDs()
}

// definitionFile has the pod that the directory was made for, as long as it is there.
func definitionFile(rootDir string, uid types.UID) string {
	return filepath.Join(rootDir, "pods", string(uid), "pod.json")
}

// KeepDefinition records what a pod is. An agent that finds another one wanted in its place lets it go on until the
// node takes that. Of a pod without a directory there is nothing to record.
func KeepDefinition(rootDir string, pod *corev1.Pod) error {
	err := record.Write(definitionFile(rootDir, pod.UID), pod)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("record pod: %w", err)
}

// Definition is what was recorded of a pod; false where that was not kept.
func Definition(rootDir string, uid types.UID) (*corev1.Pod, bool) {
	pod := &corev1.Pod{}
	return pod, record.Read(definitionFile(rootDir, uid), pod) && pod.UID == uid
}

// make makes what the containers will need, while the sandbox is being made: a new directory is an entry in the file
// system's journal, which takes its time.
func (f *files) make(context.Context) error {
	if err := makeFile(f.hosts(), 0o644, false); err != nil {
		return fmt.Errorf("make the pod's hosts: %w", err)
	}
	logs := spec.LogDirectory(f.cfg.LogDir, f.pod)
	for _, list := range [][]corev1.Container{f.pod.Spec.InitContainers, f.pod.Spec.Containers} {
		for i := range list {
			if err := os.MkdirAll(filepath.Join(logs, list[i].Name), 0o755); err != nil {
				return fmt.Errorf("make log directory: %w", err)
			}
			if err := makeFile(f.messageFile(list[i].Name, 0), messageMode, false); err != nil {
				return fmt.Errorf("make termination message: %w", err)
			}
		}
	}
	// A file system without such attributes has logs that only who knows of their pod removes.
	_ = unix.Lsetxattr(logs, ownerAttribute, []byte(f.cfg.RootDir), 0)
	return nil
}

// ownerAttribute of a log directory has the root directory of the agent that has made it: the directory of logs is that
// of every agent and kubelet of the machine. Containers cannot set attributes of this kind.
const ownerAttribute = "trusted.berth.root"

// OwnsLogs says whether a log directory is of the agent with that root directory.
func OwnsLogs(rootDir, path string) bool {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Lgetxattr(path, ownerAttribute, buf)
	return err == nil && string(buf[:n]) == rootDir
}

func (f *files) messageFile(container string, attempt uint32) string {
	return spec.MessageFile(f.cfg.RootDir, string(f.pod.UID), container, attempt)
}

// makeMessage makes the file for a container's termination message, empty, and returns its path.
func (f *files) makeMessage(container string, attempt uint32) (string, error) {
	path := f.messageFile(container, attempt)
	if err := makeFile(path, messageMode, true); err != nil {
		return "", fmt.Errorf("make termination message: %w", err)
	}
	return path, nil
}

// KeepMessages leaves of what containers have written to their messages, by file, no more than what is told of it: that
// stays as long as the pod.
func KeepMessages(said map[string]string) error {
	for path, text := range said {
		if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
			return fmt.Errorf("keep termination message: %w", err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("keep termination message: %w", err)
		}
	}
	return nil
}

// makeFile makes a file with exactly that mode, and its directory. What is in it stays unless it is to be empty.
func makeFile(path string, mode fs.FileMode, empty bool) error {
	flags := os.O_CREATE | os.O_WRONLY
	if empty {
		flags |= os.O_TRUNC
	}
	// Bare system calls: an os.File would be offered to the runtime's poller, which refuses it.
	open := func() (fd int, err error) {
		for {
			if fd, err = unix.Open(path, flags|unix.O_CLOEXEC, uint32(mode.Perm())); !errors.Is(err, unix.EINTR) {
				return fd, err
			}
		}
	}
	fd, err := open()
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), dirMode); err == nil {
			fd, err = open()
		}
	}
	if err == nil {
		defer unix.Close(fd)
		err = unix.Fchmod(fd, uint32(mode.Perm())) // what the umask has taken away
	}
	if err != nil {
		return &fs.PathError{Op: "make", Path: path, Err: err}
	}
	return nil
}

func (f *files) removeLogs(ctx context.Context) error {
	if f.pod.Name != "" {
		// Nobody looks for it among those of all pods, which would take the longer the more there are.
		return filetree.RemoveAll(ctx, spec.LogDirectory(f.cfg.LogDir, f.pod))
	}
	// Nobody waits for what is left of a pod that nobody knows.
	return filetree.Idle(func() error { return RemoveLogs(ctx, f.cfg.LogDir, f.pod.UID) })
}

// RemoveLogs removes a pod's logs. It finds their directory by the uid: of what is left of a pod the name may not be
// known.
func RemoveLogs(ctx context.Context, logDir string, uid types.UID) error {
	dirs, err := filepath.Glob(filepath.Join(logDir, "*_"+string(uid)))
	if err != nil {
		return fmt.Errorf("find logs of pod %s: %w", uid, err)
	}
	var errs []error
	for _, d := range dirs {
		errs = append(errs, filetree.RemoveAll(ctx, d))
	}
	return errors.Join(errs...)
}

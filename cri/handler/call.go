package handler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/excerpt"
	"github.com/berth-node/berth/internal/monitor"
)

// commandTimeout is how long a command may take. Deleting waits for a killed process to end.
const commandTimeout = time.Minute

// Caller runs commands of external runtimes that no process of a container comes from. Those that start one are the
// keeper's.
type Caller struct {
	// Veil is the path of the helper, which hides the v2 side of a hybrid cgroup layout from what it executes.
	Veil string
}

// Kill signals a container's first process.
func (c Caller) Kill(ctx context.Context, r *OCI, id string, sig unix.Signal) error {
	_, err := c.run(ctx, r, nil, "kill", id, strconv.Itoa(int(sig)))
	return err
}

// Delete ends a container and removes what the runtime has of it. Of one it does not know there is nothing to be
// removed.
func (c Caller) Delete(ctx context.Context, r *OCI, id string) error {
	_, err := c.run(ctx, r, nil, "delete", "--force", id)
	if err != nil && !Has(r, id) {
		return nil
	}
	return err
}

// Has says whether a runtime's root holds anything of a container.
func Has(r *OCI, id string) bool {
	// The names begin with the ID, which has no character that means something to Glob.
	found, err := filepath.Glob(filepath.Join(r.Root, id+"*"))
	return err != nil || len(found) > 0
}

// Checkpoint has CRIU dump a container's processes into the directory images, which go on running. Its log is in the
// directory work. It may take as long as ctx.
func (c Caller) Checkpoint(ctx context.Context, r *OCI, id, images, work string) error {
	_, err := c.exec(ctx, r, nil, "checkpoint", "--leave-running", "--tcp-established", "--file-locks", "--image-path", images, "--work-path", work, id)
	return err
}

// Update changes a container's limits.
func (c Caller) Update(ctx context.Context, r *OCI, id string, res *specs.LinuxResources) error {
	b, err := json.Marshal(res)
	if err != nil {
		return fmt.Errorf("encode resources: %w", err)
	}
	_, err = c.run(ctx, r, b, "update", "--resources", "-", id)
	return err
}

// run is exec for commands that take a known time.
func (c Caller) run(ctx context.Context, r *OCI, stdin []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return c.exec(ctx, r, stdin, args...)
}

// exec returns the command's output. Its error has the runtime's own words.
func (c Caller) exec(ctx context.Context, r *OCI, stdin []byte, args ...string) ([]byte, error) {
	if _, err := os.Stat(r.Path); err != nil {
		return nil, fmt.Errorf("%s %s: %w", filepath.Base(r.Path), args[0], err)
	}
	all := slices.Concat(r.Command(), args)
	cmd := exec.CommandContext(ctx, r.Path)
	cmd.Args = all
	if r.CgroupV1 && c.Veil != "" {
		cmd.Path, cmd.Args = c.Veil, append([]string{"berth-cgroup1"}, all...)
	}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdin = bytes.NewReader(stdin)
	// In case it leaves something behind that holds its output.
	cmd.WaitDelay = time.Second
	// The last of what it says is why it has failed.
	stdout, stderr := excerpt.Last{Most: maxSaid}, excerpt.Last{Most: maxSaid}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := monitor.Fork(cmd.Run)
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return stdout.Bytes(), nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	what := filepath.Base(r.Path) + " " + args[0]
	if text := lastLine(string(stderr.Bytes())); text != "" {
		return nil, fmt.Errorf("%s: %s (%w)", what, text, err)
	}
	return nil, fmt.Errorf("%s: %w", what, err)
}

// maxSaid is how much of what a command writes is kept: the features of a runtime are some ten kilobytes.
const maxSaid = 1 << 20

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	s = s[strings.LastIndexByte(s, '\n')+1:]
	s = s[:min(len(s), 4<<10)] // the error of a call is no place for more
	// runc's words without its way of logging them.
	if _, msg, ok := strings.Cut(s, "msg="); ok {
		if text, err := strconv.Unquote(msg); err == nil {
			return text
		}
	}
	return s
}

// askTimeout is how long a runtime may take to say what it is.
const askTimeout = 5 * time.Second

// Features is what of the optional parts of the CRI a handler can do.
type Features struct {
	RecursiveReadOnly bool // mount option rro
	UserNamespaces    bool // with idmapped mounts
}

// Features asks a runtime what it can do, once. Those before runc 1.1 and crun 1.8.6 do not know the question, and
// nothing is supposed of them.
func (s *Set) Features(ctx context.Context, c Caller, r *OCI) Features {
	a, err := s.answersOf(ctx, r.Path)
	if err != nil {
		return Features{}
	}
	defer a.lock.Unlock()
	if a.features != nil {
		return *a.features
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var f Features
	if out, err := c.run(ctx, r, nil, "features"); err == nil {
		f = readFeatures(out)
	}
	if ctx.Err() == nil {
		a.features = &f
	}
	return f
}

func readFeatures(b []byte) Features {
	var said features.Features
	if json.Unmarshal(b, &said) != nil {
		return Features{}
	}
	f := Features{RecursiveReadOnly: slices.Contains(said.MountOptions, "rro")}
	if l := said.Linux; l != nil && l.MountExtensions != nil && l.MountExtensions.IDMap != nil && l.MountExtensions.IDMap.Enabled != nil {
		f.UserNamespaces = *l.MountExtensions.IDMap.Enabled && slices.Contains(l.Namespaces, string(specs.UserNamespace))
	}
	return f
}

// NeedsCgroupV1 says whether a runtime cannot do with a hybrid cgroup layout whose v2 side has controllers. That is
// crun, by whatever name it is called.
func (s *Set) NeedsCgroupV1(ctx context.Context, r *OCI) bool {
	a, err := s.answersOf(ctx, r.Path)
	if err != nil {
		return false
	}
	defer a.lock.Unlock()
	if a.version == nil {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		out := excerpt.First{Most: maxSaid}
		cmd := exec.CommandContext(ctx, r.Path, "--version")
		cmd.WaitDelay, cmd.Stdout = time.Second, &out
		if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
			return false
		}
		v := string(out.Bytes)
		a.version = &v
	}
	return strings.HasPrefix(*a.version, "crun ")
}

// MakeRoot makes the directory in which a runtime keeps its state.
func (o *OCI) MakeRoot() error {
	if err := os.MkdirAll(o.Root, 0o711); err != nil {
		return fmt.Errorf("make root of runtime: %w", err)
	}
	return nil
}

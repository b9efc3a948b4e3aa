package host

import (
	"context"
	"io"
	"os"
	"syscall"

	"github.com/berth-node/berth/cri/keeper"
	"golang.org/x/sys/unix"
)

// KeeperDirs are the directories of the keepers that an earlier server has left.
func KeeperDirs(l Layout) []string {
	entries, err := os.ReadDir(l.Sandboxes())
	if err != nil {
		return nil // they are looked for again
	}
	var out []string
	for _, e := range entries {
		out = append(out, l.Sandbox(e.Name()).Keeper())
	}
	return out
}

// Keepers starts and finds the processes that hold sandboxes.
type Keepers interface {
	Start(ctx context.Context, c keeper.Config) (Keeper, error)
	Open(ctx context.Context, id, dir string) (Keeper, error)
	Await(ctx context.Context, id, dir string) (Keeper, error)
	AwaitEnd(ctx context.Context, dir string) error
	Kill(dir string) error
	NewUserNS(uids, gids []syscall.SysProcIDMap, network bool) (UserNS, error)
}

// UserNS is a new [keeper.UserNS].
type UserNS interface {
	Path(kind string) string
	Close() error
}

// Keeper is a live [keeper.Keeper].
type Keeper interface {
	Pid() int
	Pid1() int
	NSPath(kind string) string
	Run(ctx context.Context, c keeper.Container) (int, error)
	Signal(ctx context.Context, containerID string, sig unix.Signal) error
	Exits() ([]keeper.Exit, error)
	Watch(ctx context.Context, fn func(keeper.Exit)) error
	Forget(containerID string) error
	Exec(ctx context.Context, e keeper.Exec) (*keeper.Process, error)
	Captures(e keeper.Exec) bool
	Capture(ctx context.Context, e keeper.Exec, stdout, stderr io.Writer) (keeper.Exit, error)
	Attach(ctx context.Context, containerID string) (*keeper.Stream, error)
	ReopenLog(containerID string) error
	Resize(containerID string, w, h uint16) error
	Stop(ctx context.Context) error
	Quiet() bool
	StartsInScopes() bool
}

// RealKeepers are processes of the helper binary.
type RealKeepers struct{ Helper *os.File }

// Start starts a keeper.
func (r RealKeepers) Start(ctx context.Context, c keeper.Config) (Keeper, error) {
	c.Helper = r.Helper
	k, err := keeper.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Open finds a keeper that lives, and asks it.
func (r RealKeepers) Open(ctx context.Context, id, dir string) (Keeper, error) {
	k, err := keeper.Open(ctx, id, dir)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Await is Open that waits for an answer for as long as ctx lasts.
func (r RealKeepers) Await(ctx context.Context, id, dir string) (Keeper, error) {
	k, err := keeper.Await(ctx, id, dir)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// AwaitEnd waits until a keeper has ended, without asking it.
func (r RealKeepers) AwaitEnd(ctx context.Context, dir string) error {
	return keeper.AwaitKeeper(ctx, dir)
}

// NewUserNS makes a user namespace, and a network namespace that it owns where that is asked for.
func (r RealKeepers) NewUserNS(uids, gids []syscall.SysProcIDMap, network bool) (UserNS, error) {
	u, err := keeper.NewUserNS(r.Helper, uids, gids, network)
	if err != nil {
		return nil, err
	}
	return u, nil
}

// Kill ends a keeper that cannot be asked, and the processes of its pod; it returns when they have ended.
func (r RealKeepers) Kill(dir string) error { return keeper.Kill(dir) }

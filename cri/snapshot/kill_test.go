package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/cri/store"
)

func TestMain(m *testing.M) {
	if name, dir, ok := strings.Cut(os.Getenv("BERTH_TEST_CHURN"), ":"); ok {
		churn(name, dir)
	}
	os.Exit(m.Run())
}

// churn is an agent whose layers and containers come and go until it is killed.
func churn(name, dir string) {
	db, err := store.Open(store.Config{Path: filepath.Join(dir, "x.db")})
	if err != nil {
		panic(err)
	}
	s, err := implementations[name](filepath.Join(dir, "s"), db, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	for i := range 4 {
		go func() {
			for {
				if err := churnOne(s, fmt.Sprint(i), filepath.Join(dir, fmt.Sprint("m", i))); err != nil {
					fmt.Println(err)
				}
			}
		}()
	}
	select {}
}

func churnOne(s snapshot.Snapshotter, id, target string) error {
	ctx := context.Background()
	for _, parent := range []string{"", "low"} {
		key := map[string]string{"": "low", "low": "top"}[parent] + id
		if parent != "" {
			parent += id
		}
		l, err := s.Begin(ctx, key, parent)
		if errors.Is(err, snapshot.ErrExists) {
			continue
		}
		if err == nil {
			err = errors.Join(os.WriteFile(filepath.Join(l.Dir(), key), []byte("x"), 0o644), l.Commit(ctx))
		}
		if err != nil {
			return err
		}
	}
	mounts, err := s.Prepare(ctx, "container"+id, "top"+id)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(target, 0o755), mounts[0].Mount(target), os.WriteFile(target+"/f", nil, 0o644), snapshot.Unmount(target),
		s.Remove(ctx, "container"+id), s.Remove(ctx, "top"+id), s.Remove(ctx, "low"+id))
}

// TestKill kills an agent at random moments: after Clean, each directory has its record and each record its directory.
func TestKill(t *testing.T) {
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, open)
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			rnd := rand.New(rand.NewPCG(seed, 0))
			for range 10 {
				if err := n.db.Close(); err != nil {
					t.Fatal(err)
				}
				killed(t, name, n.dir, time.Duration(rnd.IntN(50_000))*time.Microsecond)
				n.start()
				if err := errors.Join(n.Clean(t.Context()), n.Swept(t.Context())); err != nil {
					t.Fatal(err)
				}
				dirs := map[string]bool{}
				for _, d := range n.dirs() {
					dirs[d] = true
				}
				for _, i := range n.List() {
					if i.Kind == snapshot.KindLayer && !exists(i.Dir) {
						t.Errorf("layer %s has no files", i.Key)
					}
					delete(dirs, filepath.Dir(i.Dir))
				}
				if len(dirs) > 0 {
					t.Errorf("directories without a record: %v", dirs)
				}
			}
		})
	}
}

// killed runs churn in a mount namespace of its own for a moment.
func killed(t *testing.T, name, dir string, moment time.Duration) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "BERTH_TEST_CHURN="+name+":"+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 1000)
	if size, _ := out.Read(said[:6]); size != 6 {
		t.Errorf("the agent said: %q", said[:size])
	}
	time.Sleep(moment)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if size, _ := out.Read(said); size > 0 {
		t.Errorf("the agent said: %q", said[:size])
	}
	_ = cmd.Wait() // killed
}

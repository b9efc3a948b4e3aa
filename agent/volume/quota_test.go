package volume

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/internal/mount/mounttest"
	"github.com/berth-node/berth/internal/quota"
)

// quotaRoot is a file system with project quotas.
func quotaRoot(t *testing.T, kind string) string {
	t.Helper()
	needRoot(t)
	args := map[string][]string{"ext4": {"-q", "-O", "quota,project", "-E", "quotatype=prjquota"}, "xfs": {"-q"}}[kind]
	if _, err := exec.LookPath("mkfs." + kind); err != nil {
		t.Skipf("needs mkfs.%s", kind)
	}
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "at")
	mounttest.Write(t, image, "")
	must(t, os.Truncate(image, 320<<20))
	if out, err := exec.CommandContext(t.Context(), "mkfs."+kind, append(args, image)...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.%s: %v: %s", kind, err, out)
	}
	must(t, os.Mkdir(at, 0o755))
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop,prjquota", image, at).CombinedOutput(); err != nil {
		t.Skipf("this kernel has no project quotas on %s: %v: %s", kind, err, out)
	}
	t.Cleanup(func() { must(t, unix.Unmount(at, 0)) })
	return at
}

// fill writes as a user without privileges, whom the kernel holds to limits, and returns the size that came about.
func fill(t *testing.T, path string, megabytes string) int64 {
	t.Helper()
	// The directories above are root's alone, so the user is given the file.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o666)
	if errors.Is(err, unix.ENOSPC) { // xfs takes no name more where all is full
		return 0
	}
	must(t, err)
	defer f.Close()
	cmd := exec.CommandContext(t.Context(), "dd", "if=/dev/zero", "bs=1M", "count="+megabytes)
	cmd.Dir, cmd.Stdout = "/", f
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	_ = cmd.Run()
	info, err := os.Stat(path)
	must(t, err)
	return info.Size()
}

func TestEmptyDirQuota(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			m := New(Config{Root: quotaRoot(t, kind), Quotas: true})
			pod := podWith(emptyDir("small", "", "2Mi"), emptyDir("large", "", "8Mi"), emptyDir("free", "", ""))
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(77))}
			paths := setup(t, m, pod)
			for name, most := range map[string]int64{"small": 2 << 20, "large": 8 << 20} {
				must(t, os.MkdirAll(filepath.Join(paths[name], "a/b"), 0o777))
				if got := fill(t, filepath.Join(paths[name], "a/b/f"), "20"); got > most || got < most/2 {
					t.Errorf("%s: %d bytes fit, of %d", name, got, most)
				}
			}
			if got := fill(t, filepath.Join(paths["free"], "f"), "20"); got != 20<<20 {
				t.Errorf("without a limit: %d bytes fit", got)
			}
			if got := fill(t, filepath.Join(paths["large"], "more"), "1"); got != 0 {
				t.Errorf("large is full, and %d bytes fit", got)
			}
			used, ok := Charged(string(m.root), testUID, "small")
			if !ok || used.Bytes < 1<<20 || used.Bytes > 2<<20 {
				t.Errorf("small has %d bytes, %v", used, ok)
			}
			if _, ok := Charged(string(m.root), testUID, "free"); ok {
				t.Error("without a limit nothing is counted")
			}
			users := podWith(emptyDir("counted", "", ""))
			users.UID, users.Spec.HostUsers = "users", new(false)
			fill(t, filepath.Join(setup(t, m, users)["counted"], "f"), "3")
			if all, ok := Charged(string(m.root), "users", "counted"); !ok || all.Bytes < 3<<20 || all.Bytes > 4<<20 || all.Inodes < 2 {
				t.Errorf("of a pod with users of its own: %+v, %v", all, ok)
			}
			projects := projects(t, paths["small"], paths["large"])
			setup(t, m, pod) // changes nothing
			if again, _ := Charged(string(m.root), testUID, "small"); again.Bytes != used.Bytes {
				t.Errorf("small has %d bytes, had %d", again, used)
			}
			// A container that owns the directory may have given it to any project, such as that of another pod.
			other := podWith(emptyDir("theirs", "", "3Mi"))
			other.UID = "other"
			theirs := setup(t, m, other)["theirs"]
			victim := project(t, theirs)
			fd, err := openDir(paths["small"])
			must(t, err)
			must(t, quota.Give(fd, victim))
			unix.Close(fd)
			teardown(t, m)
			root, err := openDir(string(m.root))
			must(t, err)
			defer unix.Close(root)
			if q, err := quota.Of(root, victim); err != nil || q.Limit != 3<<20 {
				t.Errorf("the other pod's project has %+v, %v", q, err)
			}
			must(t, m.Teardown(t.Context(), "other"))
			for _, id := range append(projects[1:], victim) {
				// xfs takes files off the count after they were removed, as it finds the time.
				if q, err := quota.Of(root, id); err != nil || q.Limit != 0 {
					t.Errorf("project %d is left: %+v, %v", id, q, err)
				}
			}
			// What a crash has left of a project without files is no hindrance, and a project with files is left to
			// whom they are.
			may := candidates(testUID, "again")
			mounttest.Write(t, filepath.Join(string(m.root), "administrators"), "x")
			fd, err = unix.Open(filepath.Join(string(m.root), "administrators"), unix.O_RDONLY, 0)
			must(t, err)
			must(t, quota.Give(fd, may[0]))
			unix.Close(fd)
			must(t, quota.Limit(root, may[1], 4096))
			paths = setup(t, m, podWith(emptyDir("again", "", "3Mi")))
			if got := fill(t, filepath.Join(paths["again"], "f"), "20"); got > 3<<20 || got < 2<<20 {
				t.Errorf("again: %d bytes fit", got)
			}
			if got := project(t, paths["again"]); got != may[1] {
				t.Errorf("it is in project %d of %v", got, may)
			}
			teardown(t, m)
		})
	}
}

func project(t *testing.T, path string) uint32 {
	t.Helper()
	fd, err := openDir(path)
	must(t, err)
	defer unix.Close(fd)
	id, _, err := quota.Project(fd)
	must(t, err)
	return id
}

func projects(t *testing.T, paths ...string) (out []uint32) {
	t.Helper()
	for _, path := range paths {
		id := project(t, path)
		if id < quota.First || slices.Contains(out, id) {
			t.Fatalf("%s is in project %d, others in %v", path, id, out)
		}
		out = append(out, id)
	}
	return out
}

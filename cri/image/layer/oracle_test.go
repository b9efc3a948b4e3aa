package layer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// exotic makes a tree with one of everything.
func exotic(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "tree")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	file := func(name, body string, mode uint32, uid, gid int) string {
		p := filepath.Join(root, name)
		check(os.MkdirAll(filepath.Dir(p), 0o755))
		check(os.WriteFile(p, []byte(body), 0o600))
		check(os.Chown(p, uid, gid))
		check(unix.Chmod(p, mode))
		check(os.Chtimes(p, time.Unix(1600000000, 0), time.Unix(1600000000+int64(len(name)), 123456789)))
		return p
	}
	file("bin/su", "suid", 0o4755, 0, 0)
	file("bin/wall", "sgid", 0o2755, 0, 5)
	file("bin/odd", "group writable", 0o664, 1000, 1000)
	file("empty", "", 0, 4294967294, 65534)
	file("big", strings.Repeat("0123456789abcdef", 200_000), 0o644, 0, 0)
	file(strings.Repeat("long/", 60)+strings.Repeat("n", 255), "long", 0o644, 0, 0)
	file("späße/\xff\xfe not utf-8", "name", 0o644, 0, 0)
	file("with\nnewline", "name", 0o644, 0, 0)
	check(os.Link(filepath.Join(root, "big"), filepath.Join(root, "bin/big-again")))
	check(os.Symlink("/etc/passwd", filepath.Join(root, "absolute")))
	check(os.Symlink("../../../etc/passwd", filepath.Join(root, "bin/climbing")))
	check(os.Symlink(strings.Repeat("x", 300), filepath.Join(root, "long-target")))
	check(os.Lchown(filepath.Join(root, "absolute"), 7, 8))
	check(os.Link(filepath.Join(root, "absolute"), filepath.Join(root, "absolute-again")))
	check(unix.Mknod(filepath.Join(root, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	check(unix.Mknod(filepath.Join(root, "disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 70000))))
	check(unix.Mkfifo(filepath.Join(root, "pipe"), 0o622))
	holes := filepath.Join(root, "holes")
	f, err := os.Create(holes)
	check(err)
	_, err = f.WriteAt([]byte("start"), 0)
	check(err)
	_, err = f.WriteAt([]byte("middle"), 3<<20)
	check(err)
	check(f.Truncate(16 << 20))
	check(f.Close())
	check(unix.Setxattr(filepath.Join(root, "bin/odd"), "user.note", []byte("a\x00b=c"), 0))
	// cap_net_raw+ep
	check(unix.Setxattr(filepath.Join(root, "bin/wall"), "security.capability",
		[]byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	check(os.Mkdir(filepath.Join(root, "tmp"), 0o755))
	check(unix.Chmod(filepath.Join(root, "tmp"), 0o1777))
	check(os.Mkdir(filepath.Join(root, "shared"), 0o755))
	check(os.Chown(filepath.Join(root, "shared"), 0, 50))
	check(unix.Chmod(filepath.Join(root, "shared"), 0o2775))
	file("shared/of-root", "group 0 in a setgid directory", 0o644, 0, 0)
	check(os.Mkdir(filepath.Join(root, "shared/plain"), 0o755))
	check(unix.Chmod(filepath.Join(root, "shared/plain"), 0o755))
	check(os.Chown(filepath.Join(root, "shared/plain"), 0, 0))
	check(unix.Setxattr(filepath.Join(root, "tmp"), "user.dir", []byte("yes"), 0))
	check(os.Chtimes(filepath.Join(root, "tmp"), time.Unix(1, 0), time.Unix(1234567890, 0)))
	check(os.Chtimes(root, time.Unix(1, 0), time.Unix(1234567891, 0)))
	return root
}

// TestAsTar compares whole trees with what GNU tar makes of the same archive.
func TestAsTar(t *testing.T) {
	needRoot(t)
	root := exotic(t)
	for _, c := range [][]string{
		{"--format=gnu"},
		{"--format=gnu", "--sparse"},
		{"--format=pax", "--xattrs", "--xattrs-include=*"},
		{"--format=pax", "--sparse", "--sparse-version=0.0"},
		{"--format=pax", "--sparse", "--sparse-version=0.1"},
		{"--format=pax", "--sparse", "--sparse-version=1.0", "--xattrs", "--xattrs-include=*"},
		{"--format=posix", "--sort=name", "--hard-dereference"},
	} {
		t.Run(strings.Join(c, " "), func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "a.tar")
			run(t, "tar", append([]string{"-C", root, "-cf", file}, append(c, ".")...)...)
			theirs, ours := filepath.Join(dir, "theirs"), filepath.Join(dir, "ours")
			for _, d := range []string{theirs, ours} {
				if err := os.Mkdir(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			run(t, "tar", "-C", theirs, "-xpf", file, "--numeric-owner", "--xattrs", "--xattrs-include=*",
				"--delay-directory-restore")
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			res, err := Unpack(context.Background(), f, ours, Options{Budget: NewBudget(1<<30, 1<<20)})
			if err != nil {
				t.Fatal(err)
			}
			same(t, describe(t, theirs, true), describe(t, ours, true))
			if len(res.Implied) != 0 {
				t.Errorf("implied directories: %q", res.Implied)
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(ours, "holes"), &st); err != nil {
				t.Fatal(err)
			}
			if sparse := strings.Contains(fmt.Sprint(c), "--sparse"); sparse && st.Blocks*512 > 1<<20 {
				t.Errorf("sparse file takes %d bytes", st.Blocks*512)
			}
		})
	}
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

package control

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// restores is how often a restore is killed. Each time the control plane is started twice.
func restores() int {
	if os.Getenv("BERTH_TEST_LONG") != "" {
		return 12
	}
	return 4
}

// write makes a ConfigMap and a Secret, or changes them, and tells their highest version.
func (p *plane) write(t *testing.T, value string) int {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string][]byte{"a": []byte(value)}}
	c := configMap("kept")
	c.Data["a"] = value
	made, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), c, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if made, err = p.client.CoreV1().ConfigMaps(ns).Update(t.Context(), c, metav1.UpdateOptions{}); err == nil {
			_, err = p.client.CoreV1().Secrets(ns).Update(t.Context(), secret, metav1.UpdateOptions{})
		}
	} else if err == nil {
		_, err = p.client.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return number(t, made.ResourceVersion)
}

// has looks for what write has made.
func (p *plane) has(t *testing.T, want string) {
	t.Helper()
	c, err := p.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil || c.Data["a"] != want {
		t.Errorf("the ConfigMap is not %q: %v, %v", want, c.Data, err)
	}
	s, err := p.client.CoreV1().Secrets(ns).Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil || string(s.Data["a"]) != want {
		t.Errorf("the Secret is not %q: %q, %v", want, s.Data["a"], err)
	}
}

// restore runs the command; what it says is told whether it fails or not.
func restore(ctx context.Context, dir, file string) (string, error) {
	out, err := exec.CommandContext(ctx, binary, "etcd", "restore", file, "--data-dir", dir).CombinedOutput()
	return string(out), err
}

// TestRestore goes back to a snapshot: the objects of then are there, and clients list again, for versions only rise.
func TestRestore(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	old := p.write(t, "old")
	file := snapshot(t, p)
	if out, err := restore(t.Context(), p.dir, file); err == nil || !strings.Contains(out, "stop it first") {
		t.Errorf("restored below a server: %v, %s", err, out)
	}
	seen := p.write(t, "new")
	if err := p.client.CoreV1().Secrets(ns).Delete(t.Context(), "kept", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 { // again of the same snapshot: versions of the first time were seen, too
		added, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("since"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seen = max(seen, number(t, added.ResourceVersion))
		p.stop(t)
		out, err := restore(t.Context(), p.dir, file)
		if err != nil || !strings.Contains(out, "next: berth-control serve") || !strings.Contains(out, "etcd.before-") {
			t.Fatalf("restore: %v, %s", err, out)
		}
		p = start(t, p.dir)
		p.has(t, "old")
		if _, err := p.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "since", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("what was made since: %v", err)
		}
		all, err := p.client.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil || number(t, all.ResourceVersion) <= seen {
			t.Errorf("%d: the list has version %s after %d, %v", i, all.ResourceVersion, seen, err)
		}
		for _, version := range []int{old, seen} {
			p.goneSince(t, version)
		}
	}
	if aside, err := filepath.Glob(filepath.Join(p.dir, "etcd.before-*")); err != nil || len(aside) != 2 {
		t.Errorf("aside: %q, %v", aside, err)
	}
	p.stop(t)
	if err := os.Remove(filepath.Join(p.dir, "pki", "encryption.yaml")); err != nil {
		t.Fatal(err)
	}
	if out, err := restore(t.Context(), p.dir, file); err != nil || !strings.Contains(out, "warning: ") {
		t.Errorf("without the key of Secrets: %v, %s", err, out)
	}
}

// goneSince has a watch that goes on from an old version be told to list again.
func (p *plane) goneSince(t *testing.T, version int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := p.client.CoreV1().ConfigMaps(ns).Watch(ctx, metav1.ListOptions{ResourceVersion: strconv.Itoa(version)})
	if err != nil {
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			t.Errorf("a watch from %d: %v", version, err)
		}
		return
	}
	defer w.Stop()
	e := <-w.ResultChan()
	if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from %d: %v: %v", version, e.Type, err)
	}
}

// TestRestoreRefuses gives the command files that are no whole snapshots: they are named, and nothing changes.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	p.write(t, "kept")
	file := snapshot(t, p)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p.stop(t)
	before := contents(t, p.dir)
	flipped := slices.Clone(good)
	flipped[len(flipped)/3] ^= 4
	for name, data := range map[string][]byte{
		"empty": nil, "torn": good[:len(good)*2/3], "flipped": flipped, "foreign": []byte(strings.Repeat("foreign ", 1000)),
	} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := restore(t.Context(), p.dir, file); err == nil || !strings.Contains(out, file) {
			t.Errorf("%s: %v, %s", name, err, out)
		}
		for path, data := range contents(t, p.dir) {
			if old, ok := before[path]; !ok || !bytes.Equal(old, data) {
				t.Errorf("%s: %s has changed", name, path)
			}
		}
	}
	start(t, p.dir).has(t, "kept")
}

// contents are the files below a directory.
func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		all[path], err = os.ReadFile(path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRestoreKilled kills restores at random moments. Each leaves the old store or the new one, and the next goes
// through.
func TestRestoreKilled(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	p.write(t, "old")
	file := snapshot(t, p)
	seen := p.write(t, "new")
	p.stop(t)
	began := time.Now()
	if out, err := restore(t.Context(), p.dir, file); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	takes, last := time.Since(began), "old"
	for i := range restores() {
		p = start(t, p.dir)
		if p.holds(t, "old") {
			last = "old"
		}
		p.has(t, last)
		last = fmt.Sprint("changed-", i) // what is as it was has no new version
		version := p.write(t, last)
		if version <= seen {
			t.Errorf("%d: version %d after %d", i, version, seen)
		}
		seen = version
		p.stop(t)
		// Half of the kills are where the stores change places, which is short.
		ended := ""
		if i%2 == 0 {
			ended = killAfter(t, p.dir, file, rand.N(takes), false)
		} else {
			ended = killAfter(t, p.dir, file, rand.N(2*time.Millisecond), true)
		}
		t.Logf("%d: %s; left: %q", i, ended, etcds(t, p.dir))
	}
	if out, err := restore(t.Context(), p.dir, file); err != nil {
		t.Fatalf("after all kills: %v: %s", err, out)
	}
	p = start(t, p.dir)
	p.has(t, "old")
	if version := p.write(t, "changed"); version <= seen {
		t.Errorf("version %d after %d", version, seen)
	}
	for _, part := range []string{"etcd.restoring", "etcd.swap.json"} {
		if _, err := os.Stat(filepath.Join(p.dir, part)); err == nil {
			t.Errorf("%s is left", part)
		}
	}
}

// killAfter kills a restore a while after its start, or after it has recorded that the stores are to change places.
func killAfter(t *testing.T, dir, file string, d time.Duration, recorded bool) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "etcd", "restore", file, "--data-dir", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for recorded {
		if _, err := os.Stat(filepath.Join(dir, "etcd.swap.json")); err == nil {
			break
		}
		select {
		case err := <-ended:
			return fmt.Sprint("it has ended before: ", err)
		default:
		}
	}
	time.Sleep(d)
	_ = cmd.Process.Kill()
	return fmt.Sprintf("killed after %s, of a swap %t: %v", d, recorded, <-ended)
}

// etcds are the names in a data directory that have to do with stores.
func etcds(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "etcd*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range paths {
		paths[i] = filepath.Base(paths[i])
	}
	return paths
}

// holds tells whether the ConfigMap has a value.
func (p *plane) holds(t *testing.T, value string) bool {
	t.Helper()
	c, err := p.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c.Data["a"] == value
}

func number(t *testing.T, version string) int {
	t.Helper()
	n, err := strconv.Atoi(version)
	if err != nil {
		t.Fatalf("a version is no number: %v", err)
	}
	return n
}

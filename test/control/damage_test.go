package control

import (
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDamagedLog changes etcd's log below a cluster. It does not start with less than it has acknowledged: it names
// what is damaged, and starts again when a copy is put back.
func TestDamagedLog(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("kept"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.stop(t)
	logs, err := filepath.Glob(filepath.Join(p.dir, "etcd", "member", "wal", "*.wal"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("etcd's log: %q, %v", logs, err)
	}
	good, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte(nil), good...)
	flipped[300] ^= 0xff // in one of the first records: the end of a log may be torn, and is read up to there
	for name, data := range map[string][]byte{"empty": nil, "flipped": flipped} {
		if err := os.WriteFile(logs[0], data, 0o600); err != nil {
			t.Fatal(err)
		}
		refuses(t, p.dir, name, filepath.Join(p.dir, "etcd"))
	}
	if err := os.WriteFile(logs[0], good, 0o600); err != nil {
		t.Fatal(err)
	}
	again := start(t, p.dir)
	if _, err := again.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestLostData takes away what a start would make anew: the store, and the certificates. It is refused, with nothing
// made in its place, and goes on when it is put back.
func TestLostData(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("kept"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.stop(t)
	away := filepath.Join(t.TempDir(), "away")
	for _, what := range []string{"etcd", "etcd/member/wal", "pki"} {
		path := filepath.Join(p.dir, what)
		if err := os.Rename(path, away); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			refuses(t, p.dir, what+" is gone", path)
		}
		if err := os.RemoveAll(path); err != nil { // directories with nothing in them
			t.Fatal(err)
		}
		if err := os.Rename(away, path); err != nil {
			t.Fatal(err)
		}
	}
	again := start(t, p.dir)
	if _, err := again.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

package environment

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/spec"
)

func testPool(t *testing.T, subuid, subgid string) *idPool {
	t.Helper()
	p := &idPool{rootDir: t.TempDir(), etc: t.TempDir()}
	for name, text := range map[string]string{"subuid": subuid, "subgid": subgid} {
		if text == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(p.etc, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// add takes the ids of a new pod.
func (p *idPool) add(t *testing.T, uid string) (*spec.IDs, error) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.file(types.UID(uid))), 0o750); err != nil {
		t.Fatal(err)
	}
	return p.take(types.UID(uid))
}

func TestIDsOfPods(t *testing.T) {
	p := testPool(t, "", "")
	var wait sync.WaitGroup
	for i := range 110 {
		wait.Go(func() {
			if _, err := p.add(t, fmt.Sprint("pod", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	seen := map[uint32]bool{}
	for i := range 110 {
		// Another agent, after the first.
		ids, err := (&idPool{rootDir: p.rootDir, etc: p.etc}).take(types.UID(fmt.Sprint("pod", i)))
		if err != nil || ids.Length != 65536 || ids.First < 65536 || ids.First%65536 != 0 || ids.First > 110*65536 || seen[ids.First] {
			t.Fatalf("pod %d: got %v, %v", i, ids, err)
		}
		seen[ids.First] = true
	}
	if _, err := p.add(t, "more"); err == nil || !strings.Contains(err.Error(), "no user ids are left") {
		t.Errorf("one pod too many: got %v", err)
	}
	free := readIDs(p.file("pod5"))
	if err := os.RemoveAll(filepath.Dir(p.file("pod5"))); err != nil {
		t.Fatal(err)
	}
	if ids, err := p.add(t, "more"); err != nil || *ids != *free {
		t.Errorf("after a pod has gone: got %v, %v, want %v", ids, err, free)
	}
	// What a power cut left of the record.
	if err := os.WriteFile(p.file("pod7"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if ids, err := p.take("pod7"); err != nil || ids.First%65536 != 0 {
		t.Errorf("got %v, %v", ids, err)
	}
}

func TestIDsPutAside(t *testing.T) {
	const line = "kubelet:131072:131072\n"
	p := testPool(t, "root:0:5\n"+line, "# x\n"+line)
	for i, want := range []uint32{131072, 196608} {
		if ids, err := p.add(t, fmt.Sprint(i)); err != nil || ids.First != want {
			t.Errorf("got %v, %v, want %d", ids, err, want)
		}
	}
	if _, err := p.add(t, "more"); err == nil {
		t.Error("more pods than were put aside for")
	}
	for name, files := range map[string][2]string{
		"one only":    {line, ""},
		"different":   {line, "kubelet:131072:196608\n"},
		"not aligned": {"kubelet:100000:65536\n", "kubelet:100000:65536\n"},
		"too small":   {"kubelet:131072:1000\n", "kubelet:131072:1000\n"},
	} {
		if ids, err := testPool(t, files[0], files[1]).add(t, "a"); err == nil {
			t.Errorf("%s: got %v", name, ids)
		}
	}
	for _, text := range []string{"", "kubelet", "kubelet:1", "kubelet:x:1", "kubelet:4294901760:65537", "kubelet:-1:5", "other:1:1"} {
		if ids := parseSubordinate([]byte(text)); ids != nil {
			t.Errorf("%q: got %v", text, ids)
		}
	}
}

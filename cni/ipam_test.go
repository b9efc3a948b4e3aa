package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func newPool(t testing.TB, dir, boot, subnet string) *pool {
	t.Helper()
	p, err := openPool(dir, boot, netip.MustParsePrefix(subnet))
	must(t, err)
	t.Cleanup(func() { p.close() })
	return p
}

func take(t testing.TB, p *pool, id string) string {
	t.Helper()
	a, err := p.add(owner(id, "eth0"))
	must(t, err)
	return a.String()
}

const (
	boot1 = "b0000000-0000-4000-8000-000000000001"
	boot2 = "b0000000-0000-4000-8000-000000000002"
)

// TestAddressesBesideOthers: a directory of addresses may be one that others use, too.
func TestAddressesBesideOthers(t *testing.T) {
	dir := t.TempDir()
	theirs := []string{"data/1", boot2 + ".d/1", boot1[1:] + "/1", "file"}
	for _, name := range theirs {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		write(t, filepath.Join(dir, name), "theirs")
	}
	p := newPool(t, dir, boot1, "10.1.2.0/29")
	take(t, p, "pod")
	must(t, os.MkdirAll(filepath.Join(p.dir, "10.1.2.4"), 0o700)) // of nobody, and no hindrance
	write(t, filepath.Join(p.dir, "notes"), "theirs")
	newPool(t, dir, boot2, "10.1.2.0/29")
	for _, name := range append(theirs, boot1+"/notes") {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, boot1, "10.1.2.2")); err == nil {
		t.Error("an address of an earlier boot is there")
	}
}

func TestAddressesGoRound(t *testing.T) {
	dir := t.TempDir()
	p := newPool(t, dir, boot1, "10.1.2.0/29") // .2 to .6
	var got []string
	for i := range 5 {
		got = append(got, take(t, p, fmt.Sprint("pod", i)))
	}
	if s := strings.Join(got, " "); s != "10.1.2.2 10.1.2.3 10.1.2.4 10.1.2.5 10.1.2.6" {
		t.Errorf("got %s", s)
	}
	if _, err := p.add("more:eth0"); err == nil || !strings.Contains(err.Error(), "5 pods") {
		t.Errorf("full: got %v", err)
	}
	if a := take(t, p, "pod3"); a != "10.1.2.5" {
		t.Errorf("asked again: got %s, want the same", a)
	}
	must(t, p.release(owner("pod1", "eth0")))
	must(t, p.release(owner("pod1", "eth0")))
	must(t, p.release(owner("pod4", "eth0")))
	if a := take(t, p, "pod5"); a != "10.1.2.3" {
		t.Errorf("the only free ones are .3 and .6, after .6: got %s", a)
	}
	// A restart goes on where the last one was.
	p = newPool(t, dir, boot1, "10.1.2.0/29")
	must(t, p.release(owner("pod0", "eth0")))
	if a := take(t, p, "pod6"); a != "10.1.2.6" {
		t.Errorf("after a restart: got %s, want 10.1.2.6", a)
	}
	must(t, p.collect(func(id string) bool { return id == "pod2" }))
	if _, ok := p.find("pod2:eth0"); !ok || len(p.owners) != 1 {
		t.Errorf("collected: got %v, want pod2 alone", p.owners)
	}
	// Nothing of an earlier boot holds.
	p = newPool(t, dir, boot2, "10.1.2.0/29")
	if len(p.owners) != 0 {
		t.Errorf("after a boot: got %v", p.owners)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("directories: got %v, %v, want that of this boot", left, err)
	}
}

func TestAddressesOfTwoProcesses(t *testing.T) {
	dir := t.TempDir()
	pools := []*pool{newPool(t, dir, "b", "10.1.0.0/24"), newPool(t, dir, "b", "10.1.0.0/24")}
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			a, err := pools[i%2].add(owner(fmt.Sprint("pod", i), "eth0"))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[a.String()] = true
		})
	}
	wg.Wait()
	if len(seen) != 200 {
		t.Errorf("different addresses: got %d, want 200", len(seen))
	}
	for i := range 200 { // each by the other one
		must(t, pools[1-i%2].release(owner(fmt.Sprint("pod", i), "eth0")))
	}
	links, err := filepath.Glob(filepath.Join(dir, "b", "10.*"))
	if err != nil || len(links) != 0 {
		t.Errorf("left: %v, %v", links, err)
	}
}

func TestForeignFilesAmongAddresses(t *testing.T) {
	dir := t.TempDir()
	p := newPool(t, dir, "b", "10.1.0.0/24")
	write(t, filepath.Join(p.dir, "10.1.0.2"), "not a link")
	write(t, filepath.Join(p.dir, "last"), "nonsense")
	must(t, os.Symlink("nonsense", filepath.Join(p.dir, "10.1.0.3")))
	if a := take(t, p, "pod"); a != "10.1.0.4" {
		t.Errorf("got %s, want the first free one", a)
	}
	must(t, p.collect(func(string) bool { return true }))
	if _, ok := p.find("nonsense"); ok {
		t.Error("a record without an owner was kept")
	}
}

func TestUsable(t *testing.T) {
	for subnet, want := range map[string]string{
		"10.0.0.0/8":       "10.0.0.1 10.255.255.254",
		"10.88.0.7/16":     "10.88.0.1 10.88.255.254",
		"192.168.1.0/30":   "192.168.1.1 192.168.1.2",
		"192.168.1.0/31":   "",
		"192.168.1.0/32":   "",
		"fd00::/64":        "",
		"::ffff:1.2.3.4/8": "",
	} {
		p, err := netip.ParsePrefix(subnet)
		if err != nil {
			continue
		}
		got := ""
		if first, last, err := usable(p); err == nil {
			got = fmt.Sprint(first, " ", last)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", subnet, got, want)
		}
	}
}

func FuzzOwner(f *testing.F) {
	f.Add("pod:eth0")
	f.Add("a:b:c")
	f.Add(":")
	f.Fuzz(func(t *testing.T, s string) {
		id, name, ok := parseOwner(s)
		if ok && owner(id, name) != s {
			t.Errorf("%q: read as %q and %q", s, id, name)
		}
	})
}
